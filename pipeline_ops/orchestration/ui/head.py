"""The head of a run's pages: what has become of the run, in one sentence."""

from __future__ import annotations

import contextlib
import dataclasses

from pipeline_ops.contract.layout import APPROVE, TRIAL
from pipeline_ops.contract.outcome import RunOutcome, find_failed
from pipeline_ops.contract.run_summary import find_outcome
from pipeline_ops.errors import DataError, TrainyardError
from pipeline_ops.orchestration.airflow_internals import SessionDep
from pipeline_ops.orchestration.airflow_runs import PipelineRun
from pipeline_ops.orchestration.run_note import find_canceller
from pipeline_ops.registry.aliases import CHAMPION
from pipeline_ops.registry.registry import Registry

_TONES = {
    "published": "good",
    "failed": "bad",
    "data_refused": "bad",
    "out_of_date": "bad",
    "running": "quiet",
    "unchanged": "quiet",
    "cancelled": "quiet",
}


@dataclasses.dataclass(frozen=True)
class RunHead:
    """`tone` is the colour: good, warn, bad or quiet. `champion` is the version in service now.

    `failed` is the first task that has failed or was ended, or "".
    """

    outcome: RunOutcome
    tone: str
    champion: int | None
    failed: str = ""


def view_head(run: PipelineRun, session: SessionDep) -> RunHead | None:
    """Finds what has become of a run. Returns None for a damaged record, which the task shows."""
    tasks = [task for task in run.tasks if not task.task_id.startswith(TRIAL)]
    states = {task.task_id: task.state for task in tasks}
    approve = next((task for task in tasks if task.task_id == APPROVE), None)
    is_waiting = approve is not None and approve.state in ("awaiting_input", "deferred")
    failed = find_failed(states, run.state)
    try:
        outcome = find_outcome(
            run.layout,
            run.run_id,
            run.started.timestamp() if run.started else None,
            {task.task_id: task.tries for task in tasks},
            is_finished=run.is_finished,
            failed=failed,
            current=next((task.task_id for task in tasks if task.is_active), ""),
            is_waiting=is_waiting,
            waits_until=approve.timeout if approve and is_waiting else None,
            ended_by=find_canceller(run.dag_id, run.run_id, run.started, session) if failed else "",
        )
    except DataError:
        return None
    champion = None
    with contextlib.suppress(TrainyardError, OSError):  # the page of the model says why
        champion = Registry(run.ref.registry).read_aliases().names.get(CHAMPION)
    return RunHead(outcome, _TONES.get(outcome.kind, "warn"), champion, failed)
