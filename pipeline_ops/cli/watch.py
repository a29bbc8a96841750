"""The state of a run: its tasks from Airflow's REST API, their progress from the jobs' files."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline_ops.artifacts.layout import Attempt, Layout, trial_name
from pipeline_ops.cli.local_airflow.airflow_api import AirflowApi, seconds_since_1970
from pipeline_ops.jobs.progress import Progress, ProgressReader
from pipeline_ops.jobs.task_record import TaskRecord, read_record
from pipeline_ops.planning.job_kinds import JOBS

FINISHED = ("success", "failed")
_ENDED = ("success", "failed", "skipped", "upstream_failed", "removed")
_RECORDED = ("success", "failed", "skipped", "up_for_retry")
_LEADER = (None, 0)
"""The worker whose progress is shown. The workers advance in step."""

_MIN_ASK_SECONDS, _MAX_ASK_SECONDS = 0.25, 2.0


@dataclasses.dataclass(frozen=True)
class TaskStatus:
    """One task at one moment.

    `state` is Airflow's word, "" until the task's turn comes. `seconds` counts from its start.
    """

    name: str
    state: str = ""
    seconds: float | None = None
    tries: int = 0
    progress: Progress | None = None
    messages: tuple[str, ...] = ()
    """The messages of the job since the last look."""
    record: TaskRecord | None = None

    @property
    def is_cached(self) -> bool:
        return bool(self.record and self.record.cached)


@dataclasses.dataclass(frozen=True)
class RunView:
    """One run at one moment. `seconds` counts from its trigger."""

    run_id: str
    state: str
    seconds: float
    tasks: tuple[TaskStatus, ...]

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED

    def task(self, name: str) -> TaskStatus:
        return next(task for task in self.tasks if task.name == name)


class RunWatcher:
    """Looks at a run repeatedly, and asks Airflow less often the longer the run takes.

    Args:
      triggered: the time of the trigger, in seconds since 1970.
      tasks: the names of the tasks, in the order in which they are shown. Mapped tasks have the
        names of their records.
    """

    def __init__(
        self,
        api: AirflowApi,
        layout: Layout,
        dag: str,
        run_id: str,
        triggered: float,
        tasks: Sequence[str] = JOBS,
    ):
        self._api, self._layout, self._dag, self._run_id, self._triggered = (
            api,
            layout,
            dag,
            run_id,
            triggered,
        )
        self._jobs = {task: _JobWatcher(layout.attempts(run_id, task)) for task in tasks}
        self._instances: dict[str, dict[str, Any]] = {}
        self._run = {"state": "queued", "end_date": None}
        self._ask_at = 0.0

    def look(self) -> RunView:
        """The present state of the run. Raises MachineError if Airflow does not answer."""
        if time.monotonic() >= self._ask_at:
            self._ask()
        end = seconds_since_1970(self._run["end_date"]) if self._run["end_date"] else time.time()
        tasks = tuple(self._look_at(task) for task in self._jobs)
        return RunView(self._run_id, self._run["state"], end - self._triggered, tasks)

    def _ask(self) -> None:
        self._instances = {
            _name(instance): instance for instance in self._api.tasks(self._dag, self._run_id)
        }
        states = [instance["state"] for instance in self._instances.values()]
        if not self._instances or all(state in _ENDED for state in states) or "failed" in states:
            self._run = self._api.run(self._dag, self._run_id)
        else:
            self._run["state"] = "running" if any(states) else "queued"
        elapsed = time.time() - self._triggered
        self._ask_at = time.monotonic() + min(max(elapsed / 60, _MIN_ASK_SECONDS), _MAX_ASK_SECONDS)

    def _look_at(self, job: str) -> TaskStatus:
        instance = self._instances.get(job)
        if instance is None or not instance["state"]:
            return TaskStatus(job)
        state = instance["state"]
        record = (
            read_record(self._layout.task_record(self._run_id, job)) if state in _RECORDED else None
        )
        progress, messages = self._jobs[job].new()
        return TaskStatus(
            job, state, _duration(instance), instance["try_number"], progress, messages, record
        )


class _JobWatcher:
    """Follows the newest of a task's attempts."""

    def __init__(self, attempts: Path):
        self._attempts, self._attempt = attempts, None
        self._reader, self._latest = None, None

    def new(self) -> tuple[Progress | None, tuple[str, ...]]:
        """The latest progress event, and the messages since the last call."""
        self._find_attempt()
        moments = self._reader.new() if self._reader else []
        self._latest = next(
            (moment for moment in reversed(moments) if moment.worker in _LEADER), self._latest
        )
        return self._latest, tuple(moment.message for moment in moments if moment.message)

    def _find_attempt(self) -> None:
        newest = (
            max(
                self._attempts.glob("attempt-*"),
                key=lambda path: path.stat().st_mtime,
                default=None,
            )
            if self._attempts.exists()
            else None
        )
        if newest != self._attempt:
            self._attempt, self._latest = newest, None
            self._reader = ProgressReader(Attempt(newest).progress)


def _name(instance: dict[str, Any]) -> str:
    """The name of a task instance. Mapped ones differ by number, as their records do."""
    number = instance["map_index"]
    return instance["task_id"] if number < 0 else trial_name(number)


def _duration(instance: dict[str, Any]) -> float | None:
    if not instance["start_date"]:
        return None
    end = (
        seconds_since_1970(instance["end_date"])
        if instance["end_date"] and instance["state"] in _ENDED
        else time.time()
    )
    return max(0.0, end - seconds_since_1970(instance["start_date"]))
