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
from typing import ParamSpec, TypeVar

from pipeline_ops.airflow_runs import PipelineRun, TaskState
from pipeline_ops.artifacts.dataset import DatasetFigures, list_shards
from pipeline_ops.artifacts.layout import Attempt, list_worker_progress
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.errors import TrainyardError
from pipeline_ops.jobs.progress import ProgressEvent, read_last_event
from pipeline_ops.jobs.task_record import TaskRecord, read_record
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.ui.charts import Chart, draw_metric_charts
from pipeline_ops.ui.curves import TrainingCurves, read_curves

_Value = TypeVar("_Value")
_Arguments = ParamSpec("_Arguments")
_MAX_PROBLEM = 500
_MAX_WORKERS = 64
"""The limit on workers in a table for people. The page shows only the number of the others."""
_WAITING = ("", "scheduled", "queued", "none")
_ACTIVE = ("running", "deferred", "queued", "scheduled", "restarting", "up_for_retry")


@dataclasses.dataclass(frozen=True)
class WorkerView:
    """One process of a gang. `silent_seconds` counts from its last sign of life."""

    name: str
    event: ProgressEvent
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
    curves: TrainingCurves
    charts: list[Chart]
    workers: list[WorkerView]
    num_hidden_workers: int
    dataset: DatasetView | None
    problems: list[str]
    """The files of the task that cannot be read, each with its path. All other files are shown."""

    @property
    def is_waiting(self) -> bool:
        return self.state in _WAITING

    @property
    def is_active(self) -> bool:
        return self.state in _ACTIVE

    @property
    def fraction_done(self) -> float | None:
        """The share of the work that is done, 0 to 1."""
        event = self.curves.latest_counted
        if event is None or event.done is None or not event.total:
            return None
        return min(1.0, event.done / event.total)


def view_tasks(run: PipelineRun, now: dt.datetime) -> Iterator[TaskView]:
    """Yields one view for each task, in the order of the DAG."""
    for task_id, mapped in itertools.groupby(run.tasks, key=lambda task: task.task_id):
        yield _view_task(run, task_id, list(mapped), now)


def _view_task(
    run: PipelineRun, task_id: str, instances: list[TaskState], now: dt.datetime
) -> TaskView:
    problems: list[str] = []
    state = next((task.state for task in instances if task.state in _ACTIVE), instances[0].state)
    record = None if state in _ACTIVE else _try_read(problems, _read_record, run, task_id)
    attempt = None if record and record.cached else run.layout.newest_attempt(run.run_id, task_id)
    curves = read_curves(attempt) if attempt else TrainingCurves()
    workers = list(_view_workers(attempt, now)) if attempt else []
    return TaskView(
        name=task_id,
        state=state,
        count=_count_states(instances) if len(instances) > 1 else "",
        seconds=_measure_seconds(instances, now),
        tries=max(task.tries for task in instances),
        record=record,
        curves=curves,
        charts=draw_metric_charts(curves.by_metric, "steps") if task_id == "train" else [],
        workers=workers[:_MAX_WORKERS],
        num_hidden_workers=max(0, len(workers) - _MAX_WORKERS),
        dataset=_try_read(problems, _view_dataset, run, record)
        if task_id == "preprocess"
        else None,
        problems=[*problems, *curves.problems],
    )


def _try_read(
    problems: list[str],
    reader: Callable[_Arguments, _Value],
    *args: _Arguments.args,
    **kwargs: _Arguments.kwargs,
) -> _Value | None:
    """Calls a reader. For a damaged file, it adds a problem and returns None."""
    try:
        return reader(*args, **kwargs)
    except (TrainyardError, OSError, ValueError) as problem:
        problems.append(str(problem)[:_MAX_PROBLEM])
        return None


def _read_record(run: PipelineRun, task_id: str) -> TaskRecord | None:
    return read_record(run.layout.task_record(run.run_id, task_id))


def _count_states(instances: list[TaskState]) -> str:
    counts = Counter(task.state or "waiting" for task in instances)
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _view_workers(attempt: Attempt[StorePath], now: dt.datetime) -> Iterator[WorkerView]:
    for name, path in list_worker_progress(attempt).items():
        if event := read_last_event(path):
            yield WorkerView(name, event, max(0.0, now.timestamp() - event.time))


def _view_dataset(run: PipelineRun, record: TaskRecord | None) -> DatasetView | None:
    """The data set of a preprocessing; None if there is none, or if it has been removed since."""
    if record is None or record.manifest is None:
        return None
    path = run.layout.check_manifest("preprocess", record.manifest)
    if not path.exists():
        return None
    manifest = read_manifest(path)
    figures = DatasetFigures.model_validate(manifest.figures)
    return DatasetView(
        splits=[
            (split, count, len(list_shards(manifest, split)))
            for split, count in figures.num_examples.items()
        ],
        num_rejected=figures.num_rejected,
        rejected_by_reason=_sort_by_count(figures.rejected_by_reason),
        skipped_by_reason=_sort_by_count(figures.skipped_by_reason),
    )


def _sort_by_count(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _measure_seconds(instances: list[TaskState], now: dt.datetime) -> float | None:
    started = [task.started for task in instances if task.started]
    if not started:
        return None
    ended = [task.ended for task in instances if task.ended and task.state not in _ACTIVE]
    end = max(ended) if len(ended) == len(instances) else now
    return max(0.0, (end - min(started)).total_seconds())


def format_duration(seconds: float | None) -> str:
    """Formats a duration as `7 s`, `3 min 20 s` or `2 h 05 min`."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
