"""The study of a search with a pruner: small files in the store, by which its trials compare.

Each file is created once and never changed, so writers on any hosts need no lock. `<training>` is
the fingerprint of a trial's training.

    <training>-<epoch>.json      the monitored figure after an epoch
    <training>-finished.json     the figures of a whole training that the search has found cached
    <training>-pruned.json       the reason why the pruner has stopped a training

The pruner itself is in `job/study.py`. Only the process of a train job imports it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from pydantic import BaseModel, ConfigDict, Field

from pipeline_ops.config.evaluate import Mode, find_mode
from pipeline_ops.contract.layout import work_folder
from pipeline_ops.errors import Pruned
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.parsing import JsonModel, read_json_as
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_path import StorePath

_FIGURES = re.compile(r"(?P<training>[0-9a-f]{32})-([0-9]{6,9}|finished)\.json")


class PlannedTrial(BaseModel):
    """The trial of a search that a training is, for the pruner."""

    model_config = ConfigDict(frozen=True)

    study: str
    """The URI of an artifact that is never made. Its work folder has the records."""
    training: str
    """The fingerprint of the training."""
    monitor: str
    min_epochs: int
    mode: Mode | None = None
    """The better direction of the figure. Null is that of a built-in one."""

    @property
    def better(self) -> Mode:
        return self.mode or find_mode(self.monitor) or "max"

    @property
    def folder(self) -> StorePath:
        """The folder of the records. `trainyard gc` removes it like the work of a dead job."""
        return work_folder(open_path(self.study))


class StudyRecord(JsonModel):
    """One file of a study."""

    model_config = ConfigDict(frozen=True)

    figures: list[float] = []
    """The figures of consecutive epochs."""
    first_epoch: int = Field(1, ge=1, lt=10**9)
    """The epoch of the first figure, counted from 1."""
    reason: str = Field("", max_length=1000)
    """The reason why the training was stopped."""


def record_epoch(planned: PlannedTrial, epoch: int, figure: float) -> bool:
    """Records the figure after an epoch. Returns whether it was not recorded before."""
    return _create(planned, f"{epoch:06d}", StudyRecord(figures=[figure], first_epoch=epoch))


def record_finished(planned: PlannedTrial, figures: Sequence[float]) -> None:
    """Records the figures of all epochs of a training that was finished before."""
    _create(planned, "finished", StudyRecord(figures=list(figures)))


def record_pruned(planned: PlannedTrial, reason: str) -> None:
    """Records that a training was stopped, for all runs of the same search."""
    _create(planned, "pruned", StudyRecord(reason=reason))


def find_pruned(planned: PlannedTrial) -> str:
    """Returns the reason why a training was stopped before, or "". Raises DataError."""
    record = read_json_as(StudyRecord, planned.folder / f"{planned.training}-pruned.json")
    return record.reason if record else ""


def check_pruned(planned: PlannedTrial) -> None:
    """Raises Pruned if the training was stopped before, and DataError for an invalid record."""
    if reason := find_pruned(planned):
        raise Pruned(reason)


def read_figures(
    planned: PlannedTrial, known: Collection[str]
) -> dict[str, list[tuple[str, int, float]]]:
    """Reads the figures in files other than the `known` ones.

    Returns training, epoch and figure by the name of the file. Raises DataError that names an
    invalid file.
    """
    names = [entry.name for entry in planned.folder.list_folder() if entry.name not in known]
    found = [matched for name in names if (matched := _FIGURES.fullmatch(name))]
    records = map_requests(
        lambda matched: read_json_as(StudyRecord, planned.folder / matched[0]), found
    )
    return {
        matched[0]: [
            (matched["training"], epoch, figure)
            for epoch, figure in enumerate(record.figures, record.first_epoch)
        ]
        for matched, record in zip(found, records, strict=True)
        if record  # it may be gone since the listing
    }


def _create(planned: PlannedTrial, kind: str, record: StudyRecord) -> bool:
    try:
        file = planned.folder / f"{planned.training}-{kind}.json"
        file.create(record.model_dump_json().encode())
    except FileExistsError:
        return False
    return True
