"""The statistics of a whole data set: the measurements of its shards added up.

They include the distances from the reference.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel

from beam_jobs.planning.plan import Record
from beam_jobs.statistics.drift import Distance
from beam_jobs.statistics.histogram import FEATURES
from beam_jobs.statistics.measure import Measurements, merge_measurements
from beam_jobs.statistics.schema import Violation
from beam_jobs.statistics.summary import ShardSummary
from pipeline_ops.artifacts.dataset import SPLITS, DatasetFigures
from pipeline_ops.config.preprocess import Drift

_MAX_NAMED_GROUPS = 50


class SplitStatistics(Measurements, frozen=True):
    num_examples: int
    labels: dict[str, int]
    """The number of examples by class, or of boxes for detection."""


class DuplicateGroup(BaseModel, frozen=True):
    """Raw files with the same content. The splits are in the order of the keys."""

    keys: list[str]
    splits: list[str]


class Duplicates(BaseModel, frozen=True):
    """Raw files that are equal to the byte.

    `num_superfluous` is the number of files that could be removed without loss. `groups` has the
    first groups, those that span several splits before the others.
    """

    num_groups: int
    num_groups_across_splits: int
    num_superfluous: int
    groups: list[DuplicateGroup]


class DatasetComparison(BaseModel, frozen=True):
    """The comparison with the reference.

    The reference is the data that the champion was trained on. If there is no champion, it is the
    previous data set.
    """

    reference: Literal["champion_data", "previous_data"]
    digest: str
    """The digest of the reference's files."""
    schema_violations: list[Violation]
    thresholds: Drift
    drift: list[Distance]


class DatasetStatistics(BaseModel, frozen=True):
    """The content of `statistics.json`.

    `edges` are the inner borders of every feature's bins, the same for every data set.
    """

    edges: dict[str, tuple[float, ...]]
    splits: dict[str, SplitStatistics]
    duplicates: Duplicates
    comparison: DatasetComparison | None = None

    def merge_splits(self) -> Measurements:
        """The measurements of all splits, added up."""
        return merge_measurements(self.splits.values())


def collect_statistics(
    summaries: Sequence[ShardSummary], figures: DatasetFigures, duplicates: Duplicates
) -> DatasetStatistics:
    """Adds up the measurements of the shards."""
    by_split = {
        split: merge_measurements(
            summary.measurements for summary in summaries if summary.split == split
        )
        for split in SPLITS
    }
    return DatasetStatistics(
        edges={name: feature.edges for name, feature in FEATURES.items()},
        duplicates=duplicates,
        splits={
            split: SplitStatistics(
                num_examples=figures.num_examples[split],
                labels=figures.labels[split],
                **dict(measurements),
            )
            for split, measurements in by_split.items()
        },
    )


def find_duplicates(
    by_split: Mapping[str, Sequence[Record]], excluded_keys: Iterable[str] = ()
) -> Duplicates:
    """Groups records by the digest of their content.

    Records whose keys are in `excluded_keys` do not count.
    """
    excluded = set(excluded_keys)
    digests = Counter(
        record.file.digest
        for records in by_split.values()
        for record in records
        if record.key not in excluded
    )
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for split, records in by_split.items():
        for record in records:
            if digests[record.file.digest] > 1 and record.key not in excluded:
                found[record.file.digest].append((record.key, split))
    groups = [_to_group(members) for members in found.values()]
    groups.sort(key=lambda group: (len(set(group.splits)) == 1, group.keys))
    return Duplicates(
        num_groups=len(groups),
        num_groups_across_splits=sum(len(set(group.splits)) > 1 for group in groups),
        groups=groups[:_MAX_NAMED_GROUPS],
        num_superfluous=sum(len(group.keys) - 1 for group in groups),
    )


def _to_group(members: Iterable[tuple[str, str]]) -> DuplicateGroup:
    keys, splits = zip(*sorted(members), strict=True)
    return DuplicateGroup(keys=list(keys), splits=list(splits))
