"""The results of building the shards: a small summary of each, and the figures of the data set.

A summary goes from the worker to the driver as a JSON file, because no runner returns a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel

from beam_jobs.statistics.measure import (
    MeasurementAccumulator,
    Measurements,
    decode_measurements,
)
from pipeline_ops.artifacts.dataset import SPLITS, DatasetFigures
from pipeline_ops.artifacts.manifest import ManifestFile
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.errors import DataError


class RejectedRecord(BaseModel, frozen=True):
    """A rejected record: the stage, the reason for counting, and the detail for a person."""

    key: str
    stage: str
    reason: str
    detail: str = ""
    file: str = ""
    """The quarantine file that holds the bytes of the record."""


class BadRecord(NamedTuple):
    """A rejected record with its bytes, or their beginning. `source` is the key of its raw file."""

    rejected: RejectedRecord
    source: str
    content: bytes
    num_bytes: int


class PlanSummary(BaseModel, frozen=True):
    """The result of a worker for one plan, which goes to the driver as JSON."""

    num_examples: int
    rejected: list[RejectedRecord] = []
    skipped: dict[str, int] = {}
    """The number of examples that a stage skipped, by `<stage>: <reason>`."""
    passed: dict[str, int] = {}
    """The number of examples that left each stage, or `write`. Some may be rejected later."""
    nanoseconds: dict[str, int] = {}
    """The time by stage. It has `read`, `measure` and `write` besides the stages."""
    split: str = ""
    measurements: Measurements | None = None

    @property
    def files(self) -> list[ManifestFile]:
        """The files that the worker has stored for the artifact."""
        return []


Summary = TypeVar("Summary", bound=PlanSummary)


class Outcome(NamedTuple):
    """The outcome of one record.

    It has the number of examples, the additions to `labels` and `skipped` of its shard, and the
    encoded `ExampleMeasurements`.
    """

    num_examples: int
    labels: Mapping[str, int]
    skipped: Mapping[str, int]
    measurements: str


class ShardSummary(PlanSummary, frozen=True):
    """The summary of one shard. `labels` counts examples by class name, or boxes for detection."""

    split: str
    name: str
    file: ManifestFile | None = None
    """The shard for the manifest. None if this stands for shards of another data set."""
    quarantine: ManifestFile | None = None
    """The bytes of its bad records, if there are any."""
    labels: dict[str, int]
    shapes: list[tuple[tuple[int, int, int], str]]
    """Every (height, width, channels) that occurred, with the key of its first image."""
    outcomes: list[Outcome] = []
    """The outcome of each record of the plan, in order."""
    lengths: list[int] = []
    """The number of bytes of each example of the shard, in order."""
    measurements: Measurements = Measurements()

    @classmethod
    def count(cls, counted: Iterable[Outcome], **fields: Any) -> ShardSummary:
        """The summary with these fields, whose counts and measurements are those of outcomes."""
        labels: Counter[str] = Counter()
        skipped: Counter[str] = Counter()
        num_examples, accumulator = 0, MeasurementAccumulator()
        for outcome in counted:
            num_examples += outcome.num_examples
            labels.update(outcome.labels)
            skipped.update(outcome.skipped)
            for measurements in decode_measurements(outcome.measurements):
                accumulator.add(measurements)
        return cls(
            num_examples=num_examples,
            labels=labels,
            skipped=skipped,
            measurements=accumulator.to_measurements(),
            **fields,
        )

    @property
    def files(self) -> list[ManifestFile]:
        return [file for file in (self.file, self.quarantine) if file]


def count_labels(summaries: Iterable[ShardSummary]) -> dict[str, Counter[str]]:
    """Counts the examples by split and label."""
    counts: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
    for summary in summaries:
        counts[summary.split].update(summary.labels)
    return counts


def check_shapes(summaries: Iterable[ShardSummary], config_file: str) -> None:
    """Raises DataError if two images have different shapes: a batch could not hold both."""
    examples = {shape: key for summary in summaries for shape, key in summary.shapes}
    if len(examples) > 1:
        (one, one_key), (other, other_key), *_ = sorted(examples.items())
        raise DataError(
            "images have different shapes (height, width, channels): "
            f"{one_key} has {one}, {other_key} has {other}. "
            f"Add the stage `- resize: {{height: {one[0]}, width: {one[1]}}}` "
            f"to preprocess.stages in {config_file}."
        )


def compute_figures(
    summaries: Sequence[ShardSummary],
    class_names: Sequence[str],
    rejected: Sequence[RejectedRecord],
    task: Task = "classification",
) -> DatasetFigures:
    """The figures of a data set whose images all have the same shape: zeros if there are no images.

    `rejected` are the rejected records of the source and of all shards.
    """
    nanoseconds: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    num_examples = dict.fromkeys(SPLITS, 0)
    for summary in summaries:
        nanoseconds.update(summary.nanoseconds)
        skipped.update(summary.skipped)
        num_examples[summary.split] += summary.num_examples
    shapes = (shape for summary in summaries for shape, _ in summary.shapes)
    labels = count_labels(summaries)
    return DatasetFigures(
        task=task,
        class_names=list(class_names),
        image_shape=next(shapes, (0, 0, 0)),
        num_examples=num_examples,
        labels={
            split: {name: counts[name] for name in class_names} for split, counts in labels.items()
        },
        num_rejected=len(rejected),
        rejected_by_reason=dict(sorted(Counter(record.reason for record in rejected).items())),
        skipped_by_reason=dict(sorted(skipped.items())),
        seconds_by_stage={stage: round(spent / 1e9, 3) for stage, spent in nanoseconds.items()},
    )


def compute_class_weights(counts: Mapping[str, int]) -> dict[str, float]:
    """A weight for each class, inverse to its count in the train split.

    The mean weight over all examples of the split is 1. A class without examples weighs 0.
    """
    present = [count for count in counts.values() if count]
    return {
        name: sum(present) / (len(present) * count) if count else 0.0
        for name, count in sorted(counts.items())
    }
