"""Measures the examples of a shard while it is built: a few numbers of each, without a second pass.

The builder of a shard calls it. The result is as large for ten examples as for ten million. The
measurements are also in the index of the data set, so that the next generation can count the
records that it takes over without opening a shard.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel

from beam_jobs.stages.stage import Example
from beam_jobs.statistics.histogram import (
    FEATURES,
    Histogram,
    HistogramAccumulator,
    merge_histograms,
)

if TYPE_CHECKING:
    import numpy as np

_MIN_MEASURED_ROWS = 64
"""The minimum number of rows of a larger image that are measured.

This many rows, or up to twice as many, give the brightness as well as all of them, in a fraction of
the time.
"""
NO_LABEL, NO_BOXES = "no_label", "no_boxes"
_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_BOX_FEATURES = [name for name, feature in FEATURES.items() if feature.level == "box"]
_IMAGE_FEATURES = [name for name, feature in FEATURES.items() if feature.level != "box"]


class ExampleMeasurements(NamedTuple):
    """All measurements of one example that statistics need. They are exact to the digit after JSON.

    `raw_height`, `raw_width` and `num_bytes` are those of the raw image, as it was decoded, and of
    its file. `height` and `width` are those of the example as it is stored. `brightness` and
    `contrast` are None if no stage has decoded the image: an image is not decoded only for
    measurements. `boxes` holds class, height and width in pixels of each box. It is None for
    classification.
    """

    raw_height: int
    raw_width: int
    num_bytes: int
    height: int
    width: int
    brightness: float | None
    contrast: float | None
    is_labelled: int
    boxes: Sequence[tuple[str, float, float]] | None = None


def measure_example(
    raw_shape: tuple[int, int, int], num_bytes: int, example: Example
) -> ExampleMeasurements:
    """Measures one example.

    Args:
      raw_shape: height, width and channels of the image as it was decoded, before any other stage.
      num_bytes: the size of the raw file.
      example: the example as it is stored.
    """
    height, width, _ = example.shape
    brightness, contrast = (
        measure_brightness_and_contrast(example.image) if example.is_decoded else (None, None)
    )
    boxes = None
    if example.boxes is not None:
        boxes = [(box.label, box.ymax - box.ymin, box.xmax - box.xmin) for box in example.boxes]
    is_labelled = int(bool(example.label))
    return ExampleMeasurements(
        *raw_shape[:2], num_bytes, height, width, brightness, contrast, is_labelled, boxes
    )


def encode_measurements(examples: Sequence[ExampleMeasurements]) -> str:
    """Encodes the measurements of one record's examples as a short text, "" for no examples.

    An index holds one text for each of millions of records.
    """
    if not examples:
        return ""
    return _to_json([found[:-1] if found.boxes is None else found for found in examples])


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


class MeasurementAccumulator:
    """Adds up the measurements of a shard: `add` for every example, then `to_measurements`."""

    def __init__(self) -> None:
        self._accumulators = {name: HistogramAccumulator(name) for name in _IMAGE_FEATURES}
        self._boxes: dict[str, dict[str, HistogramAccumulator]] = {}
        self._missing: collections.Counter[str] = collections.Counter()
        # Counted here, and measured at the end: most images of a set share a few sizes.
        self._raw_sizes: collections.Counter[tuple[int, int]] = collections.Counter()
        self._sizes: set[tuple[int, int]] = set()

    def add(self, found: ExampleMeasurements) -> None:
        self._raw_sizes[found.raw_height, found.raw_width] += 1
        self._accumulators["image_bytes"].add(found.num_bytes)
        if found.brightness is not None and found.contrast is not None:
            self._accumulators["brightness"].add(found.brightness)
            self._accumulators["contrast"].add(found.contrast)
        self._sizes.add((found.height, found.width))
        if found.boxes is not None:
            self._add_boxes(found.boxes, found.height, found.width)
        elif not found.is_labelled:
            self._missing[NO_LABEL] += 1

    def _add_boxes(
        self, boxes: Sequence[tuple[str, float, float]], height: int, width: int
    ) -> None:
        self._accumulators["boxes_per_image"].add(len(boxes))
        self._missing[NO_BOXES] += not boxes
        for label, box_height, box_width in boxes:
            accumulators = self._boxes.get(label) or self._boxes.setdefault(
                label, {name: HistogramAccumulator(name) for name in _BOX_FEATURES}
            )
            accumulators["box_width"].add(box_width / width)
            accumulators["box_height"].add(box_height / height)
            accumulators["box_area"].add(box_height * box_width / (height * width))
            accumulators["box_aspect"].add(box_width / box_height)

    def to_measurements(self) -> Measurements:
        self._measure_sizes()
        by_class = {
            label: {name: accumulator.to_histogram() for name, accumulator in accumulators.items()}
            for label, accumulators in sorted(self._boxes.items())
        }
        features = {
            name: histogram
            for name, accumulator in self._accumulators.items()
            if (histogram := accumulator.to_histogram()).count
        }
        features |= {
            name: merge_histograms(histograms[name] for histograms in by_class.values())
            for name in _BOX_FEATURES
            if by_class
        }
        sizes = _compute_sizes((height, height, width, width) for height, width in self._sizes)
        missing = {name: count for name, count in sorted(self._missing.items()) if count}
        return Measurements(features=features, by_class=by_class, missing=missing, sizes=sizes)

    def _measure_sizes(self) -> None:
        for (height, width), times in self._raw_sizes.items():
            for name, value in (
                ("image_height", height),
                ("image_width", width),
                ("image_aspect", width / height),
                ("image_megapixels", height * width / 1e6),
            ):
                self._accumulators[name].add(value, times)
        self._raw_sizes.clear()


def measure_brightness_and_contrast(image_HWC: np.ndarray) -> tuple[float, float]:
    """Mean (0 to 255) and standard deviation (0 to 127.5) over pixels and channels.

    Of a large image, every n-th row is used.
    """
    import cv2

    rows = image_HWC[:: max(1, image_HWC.shape[0] // _MIN_MEASURED_ROWS)]
    mean, deviation = cv2.meanStdDev(rows.reshape(rows.shape[0], -1))
    return round(float(mean[0, 0]), 6), round(float(deviation[0, 0]), 6)


def merge_measurements(parts: Iterable[Measurements]) -> Measurements:
    """The sum of all measurements, in any order."""
    parts = list(parts)
    sizes = [part.sizes for part in parts if part.sizes]
    missing: collections.Counter[str] = collections.Counter()
    for part in parts:
        missing.update(part.missing)
    labels = sorted({label for part in parts for label in part.by_class})
    return Measurements(
        features=_merge_features([part.features for part in parts]),
        missing=dict(sorted(missing.items())),
        by_class={
            label: _merge_features([part.by_class.get(label, {}) for part in parts])
            for label in labels
        },
        sizes=_compute_sizes(sizes),
    )


def _compute_sizes(sizes: Iterable[Sequence[int]]) -> tuple[int, int, int, int] | None:
    """The sum of some `sizes`."""
    columns = list(zip(*sizes, strict=True))
    if not columns:
        return None
    lowest_heights, highest_heights, lowest_widths, highest_widths = columns
    return min(lowest_heights), max(highest_heights), min(lowest_widths), max(highest_widths)


def _merge_features(parts: list[Mapping[str, Histogram]]) -> dict[str, Histogram]:
    return {
        name: merge_histograms(found)
        for name in FEATURES
        if (found := [part[name] for part in parts if name in part])
    }
