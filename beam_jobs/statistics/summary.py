"""Measurements of examples and summaries of shards, added up to the figures of a data set.

The builder of a shard measures its examples, without a second pass, and sums up their outcomes. A
summary goes from the worker to the driver as a JSON file, because no runner returns a value. The
measurements are also in the index of the data set, so that the next generation can count the
records that it takes over without opening a shard.

The histograms of shards add up exactly to those of a split (`contract/features.py`), so the
figures are the same to the last digit on every runner.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel

from beam_jobs.stages.stage import Example
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.contract.dataset import SPLITS, DatasetFigures, IndexEntry, RejectedRecord
from pipeline_ops.contract.features import CHANNELS, FEATURES, Histogram, merge_histograms
from pipeline_ops.contract.manifest import ManifestFile
from pipeline_ops.errors import DataError

_MIN_MEASURED_ROWS = 64
"""At least so many rows of a larger image are measured. They give its brightness as well as all."""
NO_LABEL, NO_BOXES = "no_label", "no_boxes"
DUPLICATE, CONFLICTING = "duplicate", "conflicting_labels"
"""The reasons of records that are rejected because they equal others, or nearly."""
OTHER_REASONS, _MAX_REASONS = "other reasons", 50
_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_BLOCK_EXAMPLES = 4096
"""The number of examples that are measured in one go, which takes a tenth of the time."""


def measure_histogram(feature: str, values: Sequence[float]) -> Histogram:
    """The histogram of one value or more."""
    edges, resolution = FEATURES[feature].edges, FEATURES[feature].resolution
    array = np.array(values, float)
    bins = np.searchsorted(edges, array, side="right")
    whole: list[int] = np.rint(array * (1 / resolution)).astype(int).tolist()
    return Histogram(
        counts=np.bincount(bins, minlength=len(edges) + 1).tolist(),
        count=len(whole),
        total=sum(whole),
        total_of_squares=sum(number * number for number in whole),  # may need more than 64 bits
        minimum=float(array.min()),
        maximum=float(array.max()),
    )


class ExampleMeasurements(NamedTuple):
    """All measurements of one example that statistics need. They are exact to the digit after JSON.

    `raw_height`, `raw_width` and `num_bytes` are those of the raw image, as it was decoded, and of
    its file. `height` and `width` are those of the example as it is stored. `boxes` holds class,
    height and width in pixels of each box. It is None for classification. `channels` are the means
    of red, green and blue, None for grey images.
    """

    raw_height: int
    raw_width: int
    num_bytes: int
    height: int
    width: int
    brightness: float
    contrast: float
    is_labelled: int
    boxes: Sequence[tuple[str, float, float]] | None = None
    channels: tuple[float, float, float] | None = None


def measure_example(
    raw_shape: tuple[int, int, int], num_bytes: int, example: Example
) -> ExampleMeasurements:
    """Measures an example as stored, with shape and size of its raw image and file."""
    boxes = None
    if example.boxes is not None:
        boxes = [(box.label, box.ymax - box.ymin, box.xmax - box.xmin) for box in example.boxes]
    return ExampleMeasurements(
        *raw_shape[:2],
        num_bytes,
        *example.shape[:2],
        *measure_brightness_and_contrast(example.image),
        int(bool(example.label)),
        boxes,
        measure_channels(example.image),
    )


def encode_measurements(examples: Sequence[ExampleMeasurements]) -> str:
    """Encodes the measurements of one record's examples as a short text, or as ""."""
    rows = [[*found] for found in examples]
    for row in rows:
        while row[-1] is None:  # boxes and channels, if they are missing
            row.pop()
    return _to_json(rows) if rows else ""


def decode_measurements(text: str) -> list[ExampleMeasurements]:
    return [ExampleMeasurements(*measurements) for measurements in json.loads(text)] if text else []


class Measurements(BaseModel, frozen=True):
    """The measurements of a shard or of a split. Features without a value are left out.

    `missing` counts examples without a label, and examples for detection without a box. `by_class`
    has the features of boxes by class.
    """

    features: dict[str, Histogram] = {}
    by_class: dict[str, dict[str, Histogram]] = {}
    missing: dict[str, int] = {}
    sizes: tuple[int, int, int, int] | None = None
    """The least and largest height, and the least and largest width, of the stored examples."""


def add_up(examples: Iterable[ExampleMeasurements]) -> Measurements:
    """The measurements of a shard, in memory that does not grow with it."""
    total, remaining = Measurements(), iter(examples)
    while block := list(itertools.islice(remaining, _BLOCK_EXAMPLES)):
        total = merge_measurements([total, _measure_block(block)])
    return total


def _measure_block(examples: Sequence[ExampleMeasurements]) -> Measurements:
    by_class: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in examples:
        for label, height, width in one.boxes or ():
            values = by_class[label]
            values["box_width"].append(width / one.width)
            values["box_height"].append(height / one.height)
            values["box_area"].append(height * width / (one.height * one.width))
            values["box_aspect"].append(width / height)
    features: dict[str, Sequence[float]] = {
        "image_width": [one.raw_width for one in examples],
        "image_height": [one.raw_height for one in examples],
        "image_aspect": [one.raw_width / one.raw_height for one in examples],
        "image_megapixels": [one.raw_height * one.raw_width / 1e6 for one in examples],
        "image_bytes": [one.num_bytes for one in examples],
        "brightness": [one.brightness for one in examples],
        "contrast": [one.contrast for one in examples],
        "boxes_per_image": [len(one.boxes) for one in examples if one.boxes is not None],
    }
    means = [one.channels for one in examples if one.channels is not None]
    features |= zip(CHANNELS, zip(*means, strict=True), strict=False)  # none of grey images alone
    missing = {
        NO_BOXES: sum(one.boxes is not None and not one.boxes for one in examples),
        NO_LABEL: sum(one.boxes is None and not one.is_labelled for one in examples),
    }
    measured = {name: _measure_features(values) for name, values in by_class.items()}
    return Measurements(
        features=_measure_features(features) | _merge_features(list(measured.values())),
        by_class=measured,
        missing={name: number for name, number in missing.items() if number},
        sizes=_merge_sizes((one.height, one.height, one.width, one.width) for one in examples),
    )


def _measure_features(values: Mapping[str, Sequence[float]]) -> dict[str, Histogram]:
    return {name: measure_histogram(name, found) for name, found in values.items() if found}


def measure_brightness_and_contrast(image_HWC: np.ndarray) -> tuple[float, float]:
    """Mean (0 to 255) and standard deviation (0 to 127.5) of the pixels of every n-th row."""
    import cv2

    rows = _choose_rows(image_HWC)
    mean, deviation = cv2.meanStdDev(rows.reshape(rows.shape[0], -1))
    return round(float(mean[0, 0]), 6), round(float(deviation[0, 0]), 6)


def measure_channels(image_HWC: np.ndarray) -> tuple[float, float, float] | None:
    """Means (0 to 255) of red, green and blue in every n-th row. None for a grey image."""
    import cv2

    if image_HWC.shape[2] != 3:
        return None
    red, green, blue, _ = cv2.mean(np.ascontiguousarray(_choose_rows(image_HWC)))
    return round(red, 6), round(green, 6), round(blue, 6)


def _choose_rows(image_HWC: np.ndarray) -> np.ndarray:
    return image_HWC[:: max(1, image_HWC.shape[0] // _MIN_MEASURED_ROWS)]


def merge_measurements(parts: Iterable[Measurements]) -> Measurements:
    """The sum of all measurements, in any order."""
    parts = list(parts)
    missing = sum((Counter(part.missing) for part in parts), Counter[str]())
    labels = sorted({label for part in parts for label in part.by_class})
    return Measurements(
        features=_merge_features([part.features for part in parts]),
        missing=dict(sorted(missing.items())),
        by_class={
            label: _merge_features([part.by_class.get(label, {}) for part in parts])
            for label in labels
        },
        sizes=_merge_sizes(part.sizes for part in parts if part.sizes),
    )


def _merge_sizes(sizes: Iterable[Sequence[int]]) -> tuple[int, int, int, int] | None:
    columns = list(zip(*sizes, strict=True))
    if not columns:
        return None
    return min(columns[0]), max(columns[1]), min(columns[2]), max(columns[3])


def _merge_features(parts: list[Mapping[str, Histogram]]) -> dict[str, Histogram]:
    return {
        name: merge_histograms(found)
        for name in FEATURES
        if (found := [part[name] for part in parts if name in part])
    }


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

    @property
    def files(self) -> list[ManifestFile]:
        """The files that the worker has stored for the artifact."""
        return []


Summary = TypeVar("Summary", bound=PlanSummary)


class Outcome(NamedTuple):
    """The outcome of one record: its share of its shard's counts, and its measurements."""

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
    raw_test: ManifestFile | None = None
    """Raw records of a test shard, if there are any."""
    labels: dict[str, int]
    shapes: list[tuple[tuple[int, int, int], str]]
    """Every (height, width, channels) that occurred, with the key of its first image."""
    outcomes: list[Outcome] = []
    """The outcome of each record of the plan, in order."""
    lengths: list[int] = []
    """The number of bytes of each example of the shard, in order."""
    measurements: Measurements = Measurements()

    @classmethod
    def count(cls, counted: Sequence[Outcome | IndexEntry], **fields: Any) -> ShardSummary:
        """The summary with these fields, whose counts and measurements are those of outcomes."""
        labels, skipped = Counter[str](), Counter[str]()
        for outcome in counted:
            labels.update(outcome.labels)
            skipped.update(outcome.skipped)
        measured = (one for each in counted for one in decode_measurements(each.measurements))
        return cls(
            num_examples=sum(each.num_examples for each in counted),
            labels=labels,
            skipped=skipped,
            measurements=add_up(measured),
            **fields,
        )

    @property
    def files(self) -> list[ManifestFile]:
        return [file for file in (self.file, self.quarantine, self.raw_test) if file]


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
        fault = f"{one_key} has {one}, {other_key} has {other}"
        stage = f"`- resize: {{height: {one[0]}, width: {one[1]}}}`"
        raise DataError(
            f"images have different shapes (height, width, channels): {fault}",
            f"Add the stage {stage} to preprocess.stages in {config_file}.",
        )


def compute_figures(
    summaries: Sequence[ShardSummary],
    class_names: Sequence[str],
    rejected: Sequence[RejectedRecord],
    task: Task = "classification",
) -> DatasetFigures:
    """The figures of a data set of images of one shape, with all its rejected records."""
    nanoseconds, skipped = Counter[str](), Counter[str]()
    num_examples = dict.fromkeys(SPLITS, 0)
    for summary in summaries:
        nanoseconds.update(summary.nanoseconds)
        skipped.update(summary.skipped)
        num_examples[summary.split] += summary.num_examples
    shapes = (shape for summary in summaries for shape, _ in summary.shapes)
    labels = count_labels(summaries).items()
    return DatasetFigures(
        task=task,
        class_names=list(class_names),
        image_shape=next(shapes, (0, 0, 0)),
        num_examples=num_examples,
        labels={split: {name: found[name] for name in class_names} for split, found in labels},
        num_rejected=len(rejected),
        rejected_by_reason=_limit_reasons(Counter(record.reason for record in rejected)),
        skipped_by_reason=_limit_reasons(skipped),
        seconds_by_stage={stage: round(spent / 1e9, 3) for stage, spent in nanoseconds.items()},
    )


def _limit_reasons(counts: Counter[str]) -> dict[str, int]:
    """Returns the counts by reason, the rarest of very many as one: a stage of a user may put a
    number into each reason, and pages show them all.
    """
    by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    most = dict(sorted(by_count[:_MAX_REASONS]))
    rest = counts.total() - sum(most.values())
    return most | ({OTHER_REASONS: rest} if rest else {})


def compute_class_weights(counts: Mapping[str, int]) -> dict[str, float]:
    """Weights inverse to the counts of the train split. Their mean over its examples is 1."""
    present = [count for count in counts.values() if count]
    return {
        name: sum(present) / (len(present) * count) if count else 0.0
        for name, count in sorted(counts.items())
    }
