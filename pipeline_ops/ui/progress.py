"""The state of a run, for its page.

It has each task with its progress, the curves of its training, its workers, shards and quarantine.
It is read from the files that the jobs leave in the run's folder, without a request to any job.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pipeline_ops.airflow_runs import PipelineRun, TaskState
from pipeline_ops.artifacts.dataset import DatasetFigures, shards_of
from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.errors import TrainyardError
from pipeline_ops.jobs.progress import Progress, last_moment
from pipeline_ops.jobs.task_record import TaskRecord, read_record
from pipeline_ops.ui.charts import Chart, charts_of_metrics
from pipeline_ops.ui.curves import TrainingCurves, curves_of

_Value = TypeVar("_Value")
_MAX_PROBLEM = 500
_MAX_WORKERS = 64
"""The limit on workers in a table for people. The page shows only the number of the others."""
_WAITING = ("", "scheduled", "queued", "none")
_ACTIVE = ("running", "deferred", "queued", "scheduled", "restarting", "up_for_retry")


@dataclasses.dataclass(frozen=True)
class WorkerView:
    """One process of a gang. `silent_seconds` counts from its last sign of life."""

    name: str
    moment: Progress
    silent_seconds: float


@dataclasses.dataclass(frozen=True)
class DatasetView:
    """The result of a preprocessing: examples and shards by split, and the quarantine by reason."""

    splits: list[tuple[str, int, int]]
    num_rejected: int
    rejected_by_reason: list[tuple[str, int]]
    skipped_by_reason: list[tuple[str, int]]


@dataclasses.dataclass(frozen=True)
class TaskView:
    """One task of a run."""

    name: str
    state: str
    count: str
    """The number of mapped tasks in each state, for a task that was mapped."""
    seconds: float | None
    tries: int
    record: TaskRecord | None
    latest: Progress | None
    counted: Progress | None
    notes: list[Progress]
    charts: list[Chart]
    workers: list[WorkerView]
    num_hidden_workers: int
    dataset: DatasetView | None
    problems: list[str]
    """The files of the task that cannot be read, each with its place. The others are shown."""

    @property
    def is_waiting(self) -> bool:
        return self.state in _WAITING

    @property
    def is_active(self) -> bool:
        return self.state in _ACTIVE

    @property
    def share(self) -> float | None:
        """The share of the work that is done, 0 to 1."""
        moment = self.counted
        return None if moment is None or not moment.total else min(1.0, moment.done / moment.total)


def view_tasks(run: PipelineRun, now: dt.datetime) -> Iterator[TaskView]:
    """Yields one view for each task, in the order of the DAG."""
    for task_id, mapped in itertools.groupby(run.tasks, key=lambda task: task.task_id):
        yield _view(run, task_id, list(mapped), now)


def _view(run: PipelineRun, task_id: str, instances: list[TaskState], now: dt.datetime) -> TaskView:
    problems: list[str] = []
    state = next((task.state for task in instances if task.state in _ACTIVE), instances[0].state)
    record = (
        None
        if state in _ACTIVE
        else _read(
            read_record, problems, run.layout.task_record(run.run_id, task_id), run.layout.root
        )
    )
    attempt = None if record and record.cached else run.layout.newest_attempt(run.run_id, task_id)
    curves = curves_of(attempt) if attempt else TrainingCurves()
    workers = list(_view_workers(attempt, now)) if attempt else []
    counts = Counter(task.state or "waiting" for task in instances)
    dataset = (
        _read(_view_dataset, problems, run, record) if task_id == "preprocess" and record else None
    )
    return TaskView(
        name=task_id,
        state=state,
        count=", ".join(f"{count} {name}" for name, count in counts.items())
        if len(instances) > 1
        else "",
        seconds=_seconds(instances, now),
        tries=max(task.tries for task in instances),
        record=record,
        latest=curves.latest,
        counted=curves.counted,
        notes=curves.notes,
        charts=charts_of_metrics(curves.by_metric, "steps") if task_id == "train" else [],
        workers=workers[:_MAX_WORKERS],
        num_hidden_workers=max(0, len(workers) - _MAX_WORKERS),
        dataset=dataset,
        problems=[*problems, *curves.problems],
    )


def _read(reader: Callable[..., _Value], problems: list[str], *arguments: Any) -> _Value | None:
    """Calls a reader. For a damaged file, it adds a problem and returns None."""
    try:
        return reader(*arguments)
    except (TrainyardError, OSError, ValueError) as problem:
        problems.append(str(problem)[:_MAX_PROBLEM])
        return None


def _view_workers(attempt: Attempt, now: dt.datetime) -> Iterator[WorkerView]:
    for name, path in attempt.workers_progress().items():
        if moment := last_moment(path, attempt.root):
            yield WorkerView(name, moment, max(0.0, now.timestamp() - moment.time))


def _view_dataset(run: PipelineRun, record: TaskRecord) -> DatasetView | None:
    """The data set of a preprocessing; None if there is none, or if it has been removed since."""
    if (
        record.manifest is None
        or not Path(run.layout.check_manifest("preprocess", record.manifest)).exists()
    ):
        return None
    manifest = read_manifest(record.manifest)
    figures = DatasetFigures.model_validate(manifest.figures)
    return DatasetView(
        splits=[
            (split, count, len(shards_of(manifest, split)))
            for split, count in figures.num_examples.items()
        ],
        num_rejected=figures.num_rejected,
        rejected_by_reason=_most(figures.rejected_by_reason),
        skipped_by_reason=_most(figures.skipped_by_reason),
    )


def _most(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _seconds(instances: list[TaskState], now: dt.datetime) -> float | None:
    started = [task.started for task in instances if task.started]
    if not started:
        return None
    ended = [task.ended for task in instances]
    end = (
        now
        if any(task.state in _ACTIVE for task in instances) or None in ended
        else max(filter(None, ended))
    )
    return max(0.0, (end - min(started)).total_seconds())


def as_duration(seconds: float | None) -> Any:
    """Formats a duration as `7 s`, `3 min 20 s` or `2 h 05 min`."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
