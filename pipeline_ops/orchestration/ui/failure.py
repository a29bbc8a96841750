"""The card of a run that has failed or was cancelled: what, where, the cure, and where to look.

All of it comes from files that jobs have written, so it is text of limited size, and escaped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re

from sqlalchemy.orm import Session

from pipeline_ops.contract.dataset import DATA_PAGE
from pipeline_ops.contract.layout import Attempt, find_checkpoint_step, parse_artifact_uri
from pipeline_ops.contract.manifest import NAME
from pipeline_ops.contract.progress import read_last_event
from pipeline_ops.contract.request import read_request
from pipeline_ops.contract.task_record import TaskRecord, read_record
from pipeline_ops.errors import CodeLocation, DataError, ExitCode, TrainyardError
from pipeline_ops.orchestration.airflow_runs import NotFound, PipelineRun
from pipeline_ops.orchestration.run_note import find_ending
from pipeline_ops.orchestration.ui.head import RunHead
from pipeline_ops.orchestration.ui.progress import read_log_end
from pipeline_ops.orchestration.ui.runs import RunRow, find_last_good_run
from pipeline_ops.storage.store_path import StorePath

_KINDS = ("failed", "data_refused", "out_of_date", "cancelled")
_FILE = re.compile(r"(job|gang|(chief|worker|ps)-[0-9]{1,6})\.log|rejected\.jsonl")
_MAX_FILES, _MAX_BYTES = 8, 4 << 20
_MAX_LINES, _MAX_CHARS = 2, 400


@dataclasses.dataclass(frozen=True)
class FailureView:
    """The rows of the card. An empty text is a row that is left out."""

    task: str
    what: str
    """The first two lines of the problem."""
    details: str
    """The whole problem, if `what` is not all of it."""
    place: str
    """The process and its step, or else how far the task had got by its last report."""
    location: CodeLocation | None
    cure: str
    files: list[str]
    """The names of logs and lists in the folder of the job."""
    has_data_page: bool
    log_end: str
    next_step: str
    last_good: RunRow | None
    """The newest earlier run that was published, or that found nothing changed."""

    @property
    def source(self) -> list[tuple[int, str, bool]]:
        """The lines of the author's file, each with its number, and whether it is the one."""
        if self.location is None:
            return []
        first, line = self.location.first_line, self.location.line
        return [(n, text, n == line) for n, text in enumerate(self.location.source, first)]


def view_failure(run: PipelineRun, head: RunHead | None, session: Session) -> FailureView | None:
    """Views the failure of a run. Returns None for a run that has not failed."""
    if head is None or not head.failed or head.outcome.kind not in _KINDS:
        return None
    task, record = head.failed, _read_record(run, head.failed)
    attempt = run.layout.newest_attempt(run.run_id, task)
    names = _list_files(attempt) if attempt else []
    what, details, cure, location = "", "", "", None
    if head.outcome.kind == "cancelled":
        what = _describe_ending(run, session)
    elif record:
        problem = record.hide_folders(record.cause, run.ref.storage_root)
        what = _take_lines(problem)
        details = problem if problem != what else ""
        cure = record.hide_folders(record.cure, run.ref.storage_root)
        location = record.location
    good = find_last_good_run(run.dag_id, session, run.started)
    return FailureView(
        task=task,
        what=what,
        details=details,
        place=(record and record.place) or (_describe_place(attempt) if attempt else ""),
        location=location,
        cure=cure,
        files=[name for name in names if _FILE.fullmatch(name)][:_MAX_FILES],
        has_data_page=task == "preprocess" and DATA_PAGE in names,
        log_end=read_log_end(attempt.log) if attempt else "",
        next_step=_describe_next_step(run, head, record, attempt),
        last_good=good,
    )


def read_job_file(run: PipelineRun, task: str, name: str) -> bytes:
    """Reads the end of a log or list that the newest job of a task has left.

    Raises NotFound for any other name, and without such a file.
    """
    tasks = {state.task_id for state in run.tasks}
    attempt = run.layout.newest_attempt(run.run_id, task) if task in tasks else None
    if attempt is None or not _FILE.fullmatch(name):
        raise NotFound(f"The task {task[:100]} of this run has no file {name[:100]}.")
    return (attempt.folder / name).read_log_end(_MAX_BYTES)[1]


def _read_record(run: PipelineRun, task: str) -> TaskRecord | None:
    """Reads the record of a task's last try, or None."""
    tries = next((state.tries for state in run.tasks if state.task_id == task), None)
    with contextlib.suppress(DataError):
        record = read_record(run.layout.task_record(run.run_id, task))
        if record and record.state == "failed" and record.is_of_try(tries):
            return record
    return None


def _list_files(attempt: Attempt[StorePath]) -> list[str]:
    with contextlib.suppress(TrainyardError, OSError):
        return [entry.name for entry in attempt.folder.list_folder()]
    return []


def _take_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    short = "\n".join(lines[:_MAX_LINES])
    return short if len(short) <= _MAX_CHARS else f"{short[: _MAX_CHARS - 1].rstrip()}…"


def _describe_ending(run: PipelineRun, session: Session) -> str:
    ending = find_ending(run.dag_id, run.run_id, run.started, session)
    if ending is None:
        return "Nobody has ended it in Airflow: its job got a signal from outside."
    user, time = ending
    return f"{user} has ended it in Airflow" + (f" at {time:%Y-%m-%d %H:%M} UTC." if time else ".")


def _describe_place(attempt: Attempt[StorePath]) -> str:
    """Returns how far the job had got, such as `train, 45 of 330 steps`."""
    event = read_last_event(attempt.progress)
    if event is None:
        return ""
    if event.done is None:
        return f"last report: {event.activity}"
    total = f" of {event.total:,}" if event.total else ""
    return f"last report: {event.activity}, {event.done:,}{total} {event.unit}".rstrip()


def _describe_next_step(
    run: PipelineRun,
    head: RunHead,
    record: TaskRecord | None,
    attempt: Attempt[StorePath] | None,
) -> str:
    """Says what a person does next, and what is kept of a training.

    Code and values are in the fingerprint of a training, so one that was corrected is another one.
    """
    task, kind = head.failed, head.outcome.kind
    if kind == "out_of_date":
        return head.outcome.next_step
    must_act = record and (record.location or record.exit_code in (ExitCode.CONFIG, ExitCode.DATA))
    is_corrected = kind != "cancelled" and must_act
    begin = f"Correct it, then clear the task {task}" if is_corrected else f"Clear the task {task}"
    if task != "train":
        return f"{begin}: the run goes on with what is done."
    text, step = _describe_checkpoint(_find_artifact(run, record, attempt))
    if is_corrected and step:
        return f"{begin}. With other code or values, it begins at step 0; unchanged, {text}."
    return f"{begin}: {text}."


def _find_artifact(
    run: PipelineRun, record: TaskRecord | None, attempt: Attempt[StorePath] | None
) -> StorePath | None:
    """Finds the artifact that a training was to make. A task that was ended leaves no record."""
    uri = record.artifact if record else None
    if uri is None and attempt:
        with contextlib.suppress(TrainyardError, OSError):
            uri = read_request(attempt.request).artifact
    place = parse_artifact_uri(f"{uri}/{NAME}")
    if place is None or place[:2] != (run.ref.pipeline, "train"):
        return None
    return run.layout.artifact("train", place[2])


def _describe_checkpoint(artifact: StorePath | None) -> tuple[str, int | None]:
    """Says where a training goes on, and at which step, if that is known."""
    try:
        step = find_checkpoint_step(artifact) if artifact else None
    except (TrainyardError, OSError):
        artifact = step = None
    if artifact is None:
        return "it continues at its last checkpoint, if there is one", None
    if step is None:
        return "it begins at step 0, because there is no checkpoint", None
    return f"it continues at step {step:,}", step
