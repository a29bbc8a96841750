"""Measures the examples of a shard while it is built: a few numbers of each, without a second pass.

The builder of a shard calls it. The result is as large for ten examples as for ten million. The
numbers are also in the index of the data set, so that the next generation can count the records
that it takes over without opening a shard.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel

from beam_jobs.stages.stage import Example
from beam_jobs.statistics.histogram import FEATURES, Histogram, Meter, merge

if TYPE_CHECKING:
    import numpy as np

_ROWS = 64
"""The minimum number of rows of a larger image that are measured.

This many rows, or up to twice as many, give the brightness as well as all of them, in a fraction of
the time.
"""
NO_LABEL, NO_BOXES = "no_label", "no_boxes"
_as_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_BOX = [name for name, feature in FEATURES.items() if feature.of == "box"]
_OTHERS = [name for name, feature in FEATURES.items() if feature.of != "box"]


class Numbers(NamedTuple):
    """All numbers of one example that statistics need. They are exact to the digit after JSON.

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


def numbers_of(raw_shape: tuple[int, int, int], num_bytes: int, example: Example) -> Numbers:
    """Measures one example.

    Args:
      raw_shape: height, width and channels of the image as it was decoded, before any other stage.
      num_bytes: the size of the raw file.
      example: the example as it is stored.
    """
    height, width, _ = example.shape
    brightness, contrast = (
        brightness_and_contrast(example.image) if example.is_decoded else (None, None)
    )
    boxes = (
        None
        if example.boxes is None
        else [(box.label, box.ymax - box.ymin, box.xmax - box.xmin) for box in example.boxes]
    )
    return Numbers(
        raw_shape[0],
        raw_shape[1],
        num_bytes,
        height,
        width,
        brightness,
        contrast,
        int(bool(example.label)),
        boxes,
    )


def numbers_as_text(examples: Sequence[Numbers]) -> str:
    """Encodes the numbers of one record's examples as a short text, "" for no examples.

    An index holds one text for each of millions of records.
    """
    return (
        _as_json([numbers[:-1] if numbers.boxes is None else numbers for numbers in examples])
        if examples
        else ""
    )


def numbers_from_text(text: str) -> list[Numbers]:
    return [Numbers(*numbers) for numbers in json.loads(text)] if text else []


class Measured(BaseModel, frozen=True):
    """The measurements of a shard or of a split. Features without a value are left out.

    `missing` counts examples without a label, and examples for detection without a box. `by_class`
    has the features of boxes by class.
    """

    features: dict[str, Histogram] = {}
    by_class: dict[str, dict[str, Histogram]] = {}
    missing: dict[str, int] = {}
    sizes: tuple[int, int, int, int] | None = None
    """The least and largest height, and the least and largest width, of the stored examples."""


class Ruler:
    """Measures a shard: call `add` for every example, then `measured`.

    Examples that have been measured before are added by `add_numbers`.
    """

    def __init__(self):
        self._meters = {name: Meter(name) for name in _OTHERS}
        self._boxes: dict[str, dict[str, Meter]] = {}
        self._missing = collections.Counter()
        # Counted here, and measured at the end: most images of a set share a few sizes.
        self._raw_sizes: dict[tuple[int, int], int] = {}
        self._sizes: set[tuple[int, int]] = set()

    def add(self, raw_shape: tuple[int, int, int], num_bytes: int, example: Example) -> None:
        """Measures one example. See `numbers_of`."""
        self.add_numbers(numbers_of(raw_shape, num_bytes, example))

    def add_numbers(self, numbers: Numbers) -> None:
        (
            raw_height,
            raw_width,
            num_bytes,
            height,
            width,
            brightness,
            contrast,
            is_labelled,
            boxes,
        ) = numbers
        raw_size, meters = (raw_height, raw_width), self._meters
        self._raw_sizes[raw_size] = self._raw_sizes.get(raw_size, 0) + 1
        meters["image_bytes"].add(num_bytes)
        if brightness is not None:
            meters["brightness"].add(brightness)
            meters["contrast"].add(contrast)
        self._sizes.add((height, width))
        if boxes is not None:
            self._add_boxes(boxes, height, width)
        elif not is_labelled:
            self._missing[NO_LABEL] += 1

    def _add_boxes(
        self, boxes: Sequence[tuple[str, float, float]], height: int, width: int
    ) -> None:
        self._meters["boxes_per_image"].add(len(boxes))
        self._missing[NO_BOXES] += not boxes
        for label, box_height, box_width in boxes:
            meters = self._boxes.get(label) or self._boxes.setdefault(
                label, {name: Meter(name) for name in _BOX}
            )
            meters["box_width"].add(box_width / width)
            meters["box_height"].add(box_height / height)
            meters["box_area"].add(box_height * box_width / (height * width))
            meters["box_aspect"].add(box_width / box_height)

    def measured(self) -> Measured:
        self._measure_sizes()
        by_class = {
            label: {name: meter.histogram() for name, meter in meters.items()}
            for label, meters in sorted(self._boxes.items())
        }
        features = {
            name: histogram
            for name, meter in self._meters.items()
            if (histogram := meter.histogram()).count
        }
        features |= {
            name: merge(histograms[name] for histograms in by_class.values())
            for name in _BOX
            if by_class
        }
        heights, widths = zip(*self._sizes, strict=True) if self._sizes else ((), ())
        sizes = (min(heights), max(heights), min(widths), max(widths)) if self._sizes else None
        missing = {name: count for name, count in sorted(self._missing.items()) if count}
        return Measured(features=features, by_class=by_class, missing=missing, sizes=sizes)

    def _measure_sizes(self) -> None:
        for (height, width), times in self._raw_sizes.items():
            for name, value in (
                ("image_height", height),
                ("image_width", width),
                ("image_aspect", width / height),
                ("image_megapixels", height * width / 1e6),
            ):
                self._meters[name].add(value, times)
        self._raw_sizes = {}


def brightness_and_contrast(image_HWC: np.ndarray) -> tuple[float, float]:
    """Mean (0 to 255) and standard deviation (0 to 127.5) over pixels and channels.

    Of a large image, every n-th row is used.
    """
    import cv2

    rows = image_HWC[:: max(1, image_HWC.shape[0] // _ROWS)]
    mean, deviation = cv2.meanStdDev(rows.reshape(rows.shape[0], -1))
    return round(float(mean[0, 0]), 6), round(float(deviation[0, 0]), 6)


def merge_measured(parts: Iterable[Measured]) -> Measured:
    """The sum of all measurements, in any order."""
    parts = list(parts)
    sizes = [part.sizes for part in parts if part.sizes]
    missing = collections.Counter()
    for part in parts:
        missing.update(part.missing)
    labels = sorted({label for part in parts for label in part.by_class})
    return Measured(
        features=_merge_features([part.features for part in parts]),
        missing=dict(sorted(missing.items())),
        by_class={
            label: _merge_features([part.by_class.get(label, {}) for part in parts])
            for label in labels
        },
        sizes=(
            min(s[0] for s in sizes),
            max(s[1] for s in sizes),
            min(s[2] for s in sizes),
            max(s[3] for s in sizes),
        )
        if sizes
        else None,
    )


def _merge_features(parts: list[Mapping[str, Histogram]]) -> dict[str, Histogram]:
    return {
        name: merge(found)
        for name in FEATURES
        if (found := [part[name] for part in parts if name in part])
    }
