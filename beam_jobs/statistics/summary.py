"""What building the shards has given: a small summary of each shard, and the data set's figures made from all of them.

A summary goes from the Beam worker to the driver as a JSON file, because no runner hands a value back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pydantic import BaseModel

from beam_jobs.statistics.measure import Measured
from pipeline_ops.contracts.shards import SPLITS, DatasetFigures


class RejectedRecord(BaseModel, frozen=True):
    """A record that was kept out: by which stage, for which reason to count by, and the detail for a person."""

    key: str
    stage: str
    reason: str
    detail: str = ""


class ShardSummary(BaseModel, frozen=True):
    """One shard. `labels` counts by class name: examples, or boxes for detection.

    `nanoseconds` adds up by stage, with `read` and `write` beside them.
    """

    split: str
    name: str
    num_examples: int
    labels: dict[str, int]
    shapes: list[tuple[tuple[int, int, int], str]]
    """Every (height, width, channels) that was met, with the key of its first image."""
    rejected: list[RejectedRecord]
    nanoseconds: dict[str, int]
    measured: Measured = Measured()


def count_labels(summaries: Iterable[ShardSummary]) -> dict[str, Counter[str]]:
    """Examples by split and label."""
    counts: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
    for summary in summaries:
        counts[summary.split].update(summary.labels)
    return counts


def figures_of(summaries: Sequence[ShardSummary], class_names: Sequence[str], rejected: Sequence[RejectedRecord]) -> DatasetFigures:
    """The figures of a data set whose images all have the same shape; `rejected` are those of the source and of all shards."""
    labels = count_labels(summaries)
    nanoseconds: Counter[str] = Counter()
    for summary in summaries:
        nanoseconds.update(summary.nanoseconds)
    return DatasetFigures(
        class_names=list(class_names),
        image_shape=next(shape for summary in summaries for shape, _ in summary.shapes),
        num_examples={split: sum(summary.num_examples for summary in summaries if summary.split == split) for split in SPLITS},
        labels={split: {name: counts[name] for name in class_names} for split, counts in labels.items()},
        num_rejected=len(rejected),
        rejected_by_reason=dict(sorted(Counter(record.reason for record in rejected).items())),
        seconds_by_stage={stage: round(spent / 1e9, 3) for stage, spent in nanoseconds.items()})
