"""The metrics of a training over its steps, from its progress file, in a size that can be drawn.

A progress file of days has hundreds of thousands of lines. Each line is read once, however often a
page asks. Only as many points are kept as a drawing can show.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from pathlib import Path

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.jobs.progress import Progress, ProgressReader
from pipeline_ops.pages.svg import Point

_MAX_POINTS = 400
_MAX_NOTES = 8
_MAX_METRICS = 100
_MAX_FILES = 64


class TrainingCurves:
    """The content of one progress file: the newest event, the notes, each metric by units done."""

    def __init__(self) -> None:
        self.latest: Progress | None = None
        self.counted: Progress | None = None
        """The newest event with a count.

        Events after the training have no steps, but those of the training are still shown.
        """
        self.notes: list[Progress] = []
        self.by_metric: dict[str, list[Point]] = defaultdict(list)
        self.problems: list[str] = []
        """The problems of the first few lines that cannot be read."""

    def add(self, moments: Iterable[Progress]) -> None:
        for moment in moments:
            if moment.message:
                self.notes = [*self.notes, moment][-_MAX_NOTES:]
            if moment.done is not None:
                self._add_points(moment)
                self.counted = moment
            self.latest = moment

    def copy(self) -> TrainingCurves:
        """Returns a copy for a reader who does not hold the lock."""
        copied = TrainingCurves()
        copied.latest, copied.counted, copied.notes = self.latest, self.counted, list(self.notes)
        copied.problems = list(self.problems)
        copied.by_metric.update({name: list(points) for name, points in self.by_metric.items()})
        return copied

    def _add_points(self, moment: Progress) -> None:
        is_back = self.counted is not None and moment.done < self.counted.done
        if (
            is_back
        ):  # a restarted gang continues from its last checkpoint and reports those steps again
            for points in self.by_metric.values():
                points[:] = [point for point in points if point[0] < moment.done]
        for name, value in moment.metrics.items():
            if name not in self.by_metric and len(self.by_metric) >= _MAX_METRICS:
                continue
            points = self.by_metric[name]
            points.append((moment.done, value))
            if len(points) > 2 * _MAX_POINTS:
                points[:] = [*points[:-1:2], points[-1]]


class _Follower:
    def __init__(self, path: Path, root: Path):
        self._reader = ProgressReader(path, root=root)
        self._curves, self._lock = TrainingCurves(), threading.Lock()

    def curves(self) -> TrainingCurves:
        with self._lock:
            for moments in self._reader.all():
                self._curves.add(moments)
            self._curves.problems = self._reader.problems
            return self._curves.copy()


_followers: OrderedDict[Path, _Follower] = OrderedDict()
_followers_lock = threading.Lock()


def curves_of(attempt: Attempt) -> TrainingCurves:
    """The present content of a job's progress file; empty if there is no file yet."""
    path = attempt.progress
    with _followers_lock:
        follower = _followers.setdefault(path, _Follower(path, attempt.root or attempt.folder))
        _followers.move_to_end(path)
        while len(_followers) > _MAX_FILES:
            _followers.popitem(last=False)
    return follower.curves()
