"""The metrics of a training over its steps, from its progress file, in a size that can be drawn.

A progress file of days has hundreds of thousands of lines. Each line is read once, however often a
page asks. Only as many points are kept as a drawing can show.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.jobs.progress import ProgressEvent, ProgressReader
from pipeline_ops.pages.axes import Point
from pipeline_ops.storage.store_path import StorePath

_MAX_POINTS = 400
_MAX_NOTES = 8
_MAX_METRICS = 100
_MAX_FILES = 64


class TrainingCurves:
    """The content of one progress file: the newest event, the notes, each metric by units done."""

    def __init__(self) -> None:
        self.latest: ProgressEvent | None = None
        self.latest_counted: ProgressEvent | None = None
        """The newest event with a count.

        Events after the training have no steps, but those of the training are still shown.
        """
        self.notes: list[ProgressEvent] = []
        self.by_metric: dict[str, list[Point]] = defaultdict(list)
        self.problems: list[str] = []
        """The problems of the first few lines that cannot be read."""

    def add(self, events: Iterable[ProgressEvent]) -> None:
        for event in events:
            if event.message:
                self.notes = [*self.notes, event][-_MAX_NOTES:]
            if event.done is not None:
                self._add_points(event.done, event.metrics)
                self.latest_counted = event
            self.latest = event

    def copy(self) -> TrainingCurves:
        """Returns a copy for a reader who does not hold the lock."""
        copied = copy.copy(self)
        copied.problems = list(self.problems)
        copied.by_metric = {name: list(points) for name, points in self.by_metric.items()}
        return copied

    def _add_points(self, done: int, metrics: Mapping[str, float]) -> None:
        newest = self.latest_counted.done if self.latest_counted else None
        if newest is not None and done < newest:
            # A restarted gang continues from its last checkpoint and reports those steps again.
            for points in self.by_metric.values():
                points[:] = [point for point in points if point[0] < done]
        for name, value in metrics.items():
            if name not in self.by_metric and len(self.by_metric) >= _MAX_METRICS:
                continue
            points = self.by_metric[name]
            points.append((done, value))
            if len(points) > 2 * _MAX_POINTS:
                points[:] = [*points[:-1:2], points[-1]]


class _CurveReader:
    def __init__(self, file: StorePath):
        self._reader = ProgressReader(file)
        self._curves, self._lock = TrainingCurves(), threading.Lock()

    def read(self) -> TrainingCurves:
        with self._lock:
            for events in self._reader.read_all():
                self._curves.add(events)
            self._curves.problems = self._reader.problems
            return self._curves.copy()


_curve_readers: OrderedDict[StorePath, _CurveReader] = OrderedDict()
_curve_readers_lock = threading.Lock()


def read_curves(attempt: Attempt[StorePath]) -> TrainingCurves:
    """Reads the present content of a job's progress file; empty if there is no file yet."""
    file = attempt.progress
    with _curve_readers_lock:
        reader = _curve_readers.setdefault(file, _CurveReader(file))
        _curve_readers.move_to_end(file)
        while len(_curve_readers) > _MAX_FILES:
            _curve_readers.popitem(last=False)
    return reader.read()
