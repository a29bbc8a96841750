"""Measures the examples of one shard while it is being built: a few numbers of each, and no second look at any image.

Called by the builder of a shard. What comes out is as large for ten examples as for ten million.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pydantic import BaseModel

from beam_jobs.stages.stage import Example
from beam_jobs.statistics.histogram import FEATURES, Histogram, Meter, merge

if TYPE_CHECKING:
    import numpy as np

_ROWS = 64
"""That many rows of an image, or up to twice as many, tell its brightness as well as all of them, at a fraction of the time."""
NO_LABEL, NO_BOXES = "no_label", "no_boxes"
_BOX = [name for name, feature in FEATURES.items() if feature.of == "box"]
_OTHERS = [name for name, feature in FEATURES.items() if feature.of != "box"]


class Measured(BaseModel, frozen=True):
    """What was measured, of a shard or of a split. A feature that nothing has is left out.

    `missing` counts examples without a label, and examples for detection without a box. `by_class` has the features of
    boxes by class.
    """

    features: dict[str, Histogram] = {}
    by_class: dict[str, dict[str, Histogram]] = {}
    missing: dict[str, int] = {}
    sizes: tuple[int, int, int, int] | None = None
    """Of the examples as they are stored: least and largest height, least and largest width."""


class Ruler:
    """`add` for every example of a shard, then `measured`."""

    def __init__(self):
        self._meters = {name: Meter(name) for name in _OTHERS}
        self._boxes: dict[str, dict[str, Meter]] = {}
        self._missing = collections.Counter()
        self._heights: set[int] = set()
        self._widths: set[int] = set()

    def add(self, raw_shape: tuple[int, int, int], num_bytes: int, example: Example) -> None:
        """Measures one example.

        Args:
          raw_shape: height, width and channels of the image as it was decoded, before any other stage.
          num_bytes: of the raw file.
          example: as it is stored.
        """
        height, width, _ = raw_shape
        meters = self._meters
        meters["image_height"].add(height)
        meters["image_width"].add(width)
        meters["image_aspect"].add(width / height)
        meters["image_megapixels"].add(height * width / 1e6)
        meters["image_bytes"].add(num_bytes)
        brightness, contrast = brightness_and_contrast(example.image)
        meters["brightness"].add(brightness)
        meters["contrast"].add(contrast)
        self._heights.add(example.image.shape[0])
        self._widths.add(example.image.shape[1])
        if example.boxes is not None:
            self._add_boxes(example)
        elif not example.label:
            self._missing[NO_LABEL] += 1

    def _add_boxes(self, example: Example) -> None:
        height, width, _ = example.image.shape
        self._meters["boxes_per_image"].add(len(example.boxes))
        self._missing[NO_BOXES] += not example.boxes
        for box in example.boxes:
            meters = self._boxes.get(box.label) or self._boxes.setdefault(box.label, {name: Meter(name) for name in _BOX})
            box_height, box_width = box.ymax - box.ymin, box.xmax - box.xmin
            meters["box_width"].add(box_width / width)
            meters["box_height"].add(box_height / height)
            meters["box_area"].add(box.area / (height * width))
            meters["box_aspect"].add(box_width / box_height)

    def measured(self) -> Measured:
        by_class = {label: {name: meter.histogram() for name, meter in meters.items()} for label, meters in sorted(self._boxes.items())}
        features = {name: histogram for name, meter in self._meters.items() if (histogram := meter.histogram()).count}
        features |= {name: merge(histograms[name] for histograms in by_class.values()) for name in _BOX if by_class}
        sizes = (min(self._heights), max(self._heights), min(self._widths), max(self._widths)) if self._heights else None
        missing = {name: count for name, count in sorted(self._missing.items()) if count}
        return Measured(features=features, by_class=by_class, missing=missing, sizes=sizes)


def brightness_and_contrast(image_HWC: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation over pixels and channels, 0 to 255 and 0 to 127.5; of a large image, over every n-th row."""
    import cv2

    rows = image_HWC[:: max(1, image_HWC.shape[0] // _ROWS)]
    mean, deviation = cv2.meanStdDev(rows.reshape(rows.shape[0], -1))
    return float(mean[0, 0]), float(deviation[0, 0])


def merge_measured(parts: Iterable[Measured]) -> Measured:
    """What was measured in all of them; the order does not matter."""
    parts = list(parts)
    sizes = [part.sizes for part in parts if part.sizes]
    missing = collections.Counter()
    for part in parts:
        missing.update(part.missing)
    labels = sorted({label for part in parts for label in part.by_class})
    return Measured(features=_merge_features([part.features for part in parts]), missing=dict(sorted(missing.items())),
                    by_class={label: _merge_features([part.by_class.get(label, {}) for part in parts]) for label in labels},
                    sizes=(min(s[0] for s in sizes), max(s[1] for s in sizes), min(s[2] for s in sizes), max(s[3] for s in sizes)) if sizes else None)


def _merge_features(parts: list[Mapping[str, Histogram]]) -> dict[str, Histogram]:
    return {name: merge(found) for name in FEATURES if (found := [part[name] for part in parts if name in part])}
