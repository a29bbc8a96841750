"""The state of a run, for its page, with the curves of its training.

It is read from the files that the jobs leave in the run's folder. A progress file of days has
hundreds of thousands of lines, so each line is read once, a long file in several requests, and only
as many points of a curve are kept as a drawing can show.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime as dt
import functools
import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from markupsafe import Markup

from pipeline_ops.contract.dataset import DatasetFigures, list_shards
from pipeline_ops.contract.layout import APPROVE, list_worker_progress
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.progress import ProgressEvent, ProgressReader, read_last_event
from pipeline_ops.contract.results import TrainingFigures
from pipeline_ops.contract.task_record import TaskRecord, read_record
from pipeline_ops.errors import TrainyardError
from pipeline_ops.orchestration.airflow_runs import PipelineRun, TaskState
from pipeline_ops.pages.charts import (
    LARGE,
    MAX_POINTS,
    Line,
    Point,
    draw_legend,
    draw_line_chart,
    drop_undrawable,
    thin,
)
from pipeline_ops.pages.metric_titles import format_metric_title
from pipeline_ops.storage.store_path import StorePath

_VALIDATION = "validation_"
_STYLES, _NUM_SERIES = ("training", "validation"), 4
"""The styles of lines in `ui.css`."""
CurveName = tuple[str, str]
"""The title of the chart, and the label of the curve."""


@dataclasses.dataclass(frozen=True)
class Chart:
    title: str
    legend: Markup
    drawing: Markup


def list_curves(event: ProgressEvent) -> Iterator[tuple[CurveName, float]]:
    """Yields the event's value of each curve: metrics, shares of the time, and GPUs."""
    for name, value in event.metrics.items():
        label = "validation" if name.startswith(_VALIDATION) else "training"
        yield (name.removeprefix(_VALIDATION), label), value
    for name, share in event.shares or ():
        yield ("share_of_time", name), share
    for gpu in event.gpus:
        figures = {
            "GPU_utilization": gpu.utilization,
            "GPU_memory_(GB)": gpu.memory_bytes / 1e9,
            "GPU_power_(W)": gpu.watts,
        }
        for name, figure in figures.items():
            if figure is not None:
                yield (name, gpu.name), figure


def draw_curves(
    curves: Mapping[CurveName, Sequence[Point]], x_label: str, is_thinned: bool = False
) -> list[Chart]:
    """Draws one chart for each name, such as that of a metric, with all of its curves."""
    charts = []
    for name in dict.fromkeys(name for name, _ in curves):
        points = {label: drop_undrawable(curves[it, label]) for it, label in curves if it == name}
        lines = [
            Line(label, label if label in _STYLES else f"series-{number % _NUM_SERIES}", drawn)
            for number, (label, drawn) in enumerate(sorted(points.items()))
            if drawn
        ]
        if lines:
            drawing = draw_line_chart(
                name, lines, x_label, frame=LARGE, has_dots=False, is_thinned=is_thinned
            )
            legend = draw_legend(lines) if len(points) > 1 else Markup()
            charts.append(Chart(format_metric_title(name), legend, drawing))
    return charts


def draw_version_charts(by_metric: Mapping[str, Sequence[Point]]) -> list[Chart]:
    """Draws one chart for each metric of a model, over its versions."""
    return [
        Chart(
            format_metric_title(name),
            Markup(),
            draw_line_chart(name, [Line(name, "training", drawable)], "version", frame=LARGE),
        )
        for name, points in by_metric.items()
        if (drawable := drop_undrawable(points))
    ]


_STEPS = "steps"
_MAX_NOTES = 8
_MAX_CURVES = 200
_MAX_FILES = 64
_MAX_READS = 8
"""The number of reads, of a few megabytes each, that a request waits for: three seconds."""


class TrainingCurves:
    """The content of one progress file, with the values of each curve by units done."""

    def __init__(self) -> None:
        self.latest: ProgressEvent | None = None
        self.latest_counted: ProgressEvent | None = None
        """The newest event that counts the work of the task, which later ones may lack."""
        self.notes: list[ProgressEvent] = []
        """The newest messages."""
        self.num_earlier_notes = 0
        self.points: dict[CurveName, list[Point]] = defaultdict(list)
        self.is_thinned = False
        """Whether points were left out: all but the lowest and the highest of neighbours."""
        self.has_more_curves = False
        """Whether there are more curves than can be shown."""
        self.is_partial = False
        """Whether the file goes on after what was read. `latest` is its end nevertheless."""
        self.problems: list[str] = []
        """The problems of the first few lines that cannot be read."""

    def add(self, events: Iterable[ProgressEvent]) -> None:
        for event in events:
            if event.message:
                notes = [*self.notes, event]
                self.num_earlier_notes += max(0, len(notes) - _MAX_NOTES)
                self.notes = notes[-_MAX_NOTES:]
            if event.done is not None and self.is_counted(event):
                self._add_points(event.done, list_curves(event))
                self.latest_counted = event
            self.latest = event

    def is_counted(self, event: ProgressEvent) -> bool:
        """Returns whether an event counts the work of the task.

        In a training these are steps, and not the batches of a validation in between.
        """
        has_steps = self.latest_counted is not None and self.latest_counted.unit == _STEPS
        return event.done is not None and (event.unit == _STEPS or not has_steps)

    def copy(self) -> TrainingCurves:
        """Returns a copy for a reader without the lock."""
        copied = copy.copy(self)
        copied.problems = list(self.problems)
        copied.points = {name: list(points) for name, points in self.points.items()}
        return copied

    def _add_points(self, done: int, values: Iterable[tuple[CurveName, float]]) -> None:
        newest = self.latest_counted.done if self.latest_counted else None
        if newest is not None and done < newest:
            # A restarted gang continues from its last checkpoint and reports those steps again.
            for points in self.points.values():
                points[:] = [point for point in points if point[0] < done]
        for name, value in values:
            if name not in self.points and len(self.points) >= _MAX_CURVES:
                self.has_more_curves = True
                continue
            points = self.points[name]
            points.append((done, value))
            if len(points) > 2 * MAX_POINTS:
                points[:] = thin(drop_undrawable(points), MAX_POINTS)
                self.is_thinned = True


class _CurveReader:
    def __init__(self, file: StorePath):
        self._file, self._reader = file, ProgressReader(file)
        self._curves, self._lock = TrainingCurves(), threading.Lock()

    def read(self) -> TrainingCurves:
        """Reads on from where the last call has ended, not further than `_MAX_READS` go."""
        with self._lock:
            is_partial = self._read_part()
            self._curves.problems = self._reader.problems
            curves = self._curves.copy()
        if is_partial and (newest := read_last_event(self._file)):
            curves.is_partial, curves.latest = True, newest
            curves.latest_counted = newest if curves.is_counted(newest) else curves.latest_counted
        return curves

    def _read_part(self) -> bool:
        """Returns whether the file may go on."""
        for _ in range(_MAX_READS):
            start = self._reader.offset
            self._curves.add(self._reader.read_new())
            if self._reader.offset == start:
                return False
        return True


_open_reader = functools.lru_cache(_MAX_FILES)(_CurveReader)
_Value = TypeVar("_Value")
_MAX_PROBLEM = 500
_MAX_WORKERS = 64
"""The limit on workers in the table. The page shows the number of the others."""
_WORDS = {
    "": "waiting",
    "none": "waiting",
    "scheduled": "starting",
    "queued": "starting",
    "deferred": "running",
    "awaiting_input": "waits for your decision",
    "up_for_retry": "is tried again soon",
    "upstream_failed": "not reached",
}
_MAX_PHASE_MESSAGE = 100
_LOG_LINES, _LOG_BYTES = 30, 8192
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
    """The files of the task that cannot be read, each with its path."""

    early_stop: str = ""
    """Where and why a training has stopped before its last epoch."""

    @property
    def word(self) -> str:
        """The state as a person would say it."""
        return _WORDS.get(self.state, self.state.replace("_", " "))

    @property
    def phase(self) -> str:
        """The newest phase as a person would say it, with its own count or a short message."""
        event = self.curves.latest
        if event is None:
            is_starting = self.name != APPROVE and self.state in ("running", "deferred")
            return "starting" if is_starting else ""
        if event.done is not None:
            is_own_count = event.total and event is not self.curves.latest_counted
            count = f": {event.done:,} of {event.total:,} {event.unit}" if is_own_count else ""
            return f"{event.activity}{count}"
        is_short = 0 < len(event.message) <= _MAX_PHASE_MESSAGE
        return f"{event.activity}: {event.message}" if is_short else event.activity

    @property
    def seconds_left(self) -> float | None:
        """The time to the end of the task's work, while that is counted."""
        event = self.curves.latest
        if event is None or event is not self.curves.latest_counted or not self.is_active:
            return None
        return event.eta_seconds

    @property
    def rank(self) -> int:
        """The place on the page: what has failed, what runs, what is to come, what is done."""
        if self.state == "failed":
            return 0
        if self.state in ("success", "skipped", "removed"):
            return 3
        return 2 if self.is_waiting or self.state == "upstream_failed" else 1

    @property
    def result(self) -> str:
        """The result of a task that is done, as a few words."""
        if self.record and self.record.cached:
            return "unchanged"
        if self.early_stop:
            return self.early_stop
        if self.dataset:
            count = sum(examples for _, examples, _ in self.dataset.splits)
            return f"{count:,} examples, {self.dataset.num_rejected:,} in quarantine"
        return ""

    @property
    def is_waiting(self) -> bool:
        return self.state in _WAITING

    @property
    def is_active(self) -> bool:
        return self.state in _ACTIVE

    @property
    def has_shares(self) -> bool:
        return any(worker.event.shares for worker in self.workers)

    @property
    def has_gpus(self) -> bool:
        return any(worker.event.gpus for worker in self.workers)

    @property
    def fraction_done(self) -> float | None:
        """The share of the work that is done, 0 to 1."""
        event = self.curves.latest_counted
        if event is None or event.done is None or not event.total:
            return None
        return min(1.0, event.done / event.total)


def view_tasks(run: PipelineRun, now: dt.datetime) -> Iterator[TaskView]:
    """Yields one view for each task: failed ones, those that run, waiting ones, done ones."""
    groups = itertools.groupby(run.tasks, key=lambda task: task.task_id)
    views = [_view_task(run, task_id, list(mapped), now) for task_id, mapped in groups]
    yield from views if run.is_finished else sorted(views, key=lambda view: view.rank)


def _view_task(
    run: PipelineRun, task_id: str, instances: list[TaskState], now: dt.datetime
) -> TaskView:
    problems: list[str] = []
    state = next((task.state for task in instances if task.state in _ACTIVE), instances[0].state)
    file = run.layout.task_record(run.run_id, task_id)
    record = None if state in _ACTIVE else _try_read(problems, lambda: read_record(file))
    attempt = None if record and record.cached else run.layout.newest_attempt(run.run_id, task_id)
    curves = _open_reader(attempt.progress).read() if attempt else TrainingCurves()
    workers = [
        WorkerView(name, event, max(0.0, now.timestamp() - event.time))
        for name, path in (list_worker_progress(attempt).items() if attempt else ())
        if (event := read_last_event(path))
    ]
    mapped = instances if len(instances) > 1 else []
    counts = Counter(task.state or "waiting" for task in mapped)
    return TaskView(
        name=task_id,
        state=state,
        count=", ".join(f"{count} {name}" for name, count in counts.items()),
        seconds=_measure_seconds(instances, now),
        tries=max(task.tries for task in instances),
        record=record,
        curves=curves,
        charts=draw_curves(curves.points, "steps", curves.is_thinned) if task_id == "train" else [],
        workers=workers[:_MAX_WORKERS],
        num_hidden_workers=max(0, len(workers) - _MAX_WORKERS),
        dataset=_try_read(problems, lambda: _view_dataset(run, record))
        if task_id == "preprocess"
        else None,
        early_stop=(_try_read(problems, lambda: _read_early_stop(run, record)) or "")
        if task_id == "train"
        else "",
        problems=[*problems, *curves.problems],
    )


def read_log_end(file: StorePath) -> str:
    """Returns the last lines of a log, or "" if it cannot be read."""
    with contextlib.suppress(TrainyardError, OSError):
        _, content = file.read_log_end(_LOG_BYTES)
        return "\n".join(content.decode(errors="replace").splitlines()[-_LOG_LINES:])
    return ""


def _try_read(problems: list[str], reader: Callable[[], _Value]) -> _Value | None:
    """Calls a reader. For a damaged file, it adds a problem and returns None."""
    try:
        return reader()
    except (TrainyardError, OSError, ValueError) as problem:
        problems.append(str(problem)[:_MAX_PROBLEM])
        return None


def _view_dataset(run: PipelineRun, record: TaskRecord | None) -> DatasetView | None:
    """Reads the data set of a preprocessing, or returns None if it has been removed since."""
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


def _read_early_stop(run: PipelineRun, record: TaskRecord | None) -> str:
    """Reads where and why a training has stopped early, or "" if its artifact has been removed."""
    if record is None or record.manifest is None:
        return ""
    path = run.layout.check_manifest("train", record.manifest)
    if not path.exists():
        return ""
    return TrainingFigures.model_validate(read_manifest(path).figures).early_stop


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
