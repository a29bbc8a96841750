"""Histograms that can be added up: fixed edges, and exact moments next to the counts.

Every shard of every data set uses the same edges for a feature. So the histograms of shards add up
to those of a split, and those of two data sets can be compared bin by bin. The sums are integers,
of values in units of `resolution`. Adding them up is exact in any order, so the figures are the
same to the last digit on every runner.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature that is measured.

    `edges` are the inner borders of the bins. The first and the last bin are open. A value on an
    edge is in the bin above it. In the moments, values are rounded to `resolution`.
    """

    title: str
    unit: str
    edges: tuple[float, ...]
    resolution: float = 1e-6
    level: Literal["raw", "example", "box"] = "raw"


def _compute_geometric_edges(first: float, ratio: float, count: int) -> tuple[float, ...]:
    """A geometric sequence, rounded so that it does not depend on the machine's `pow`."""
    return tuple(float(f"{first * ratio**index:.4g}") for index in range(count))


_SIDES = _compute_geometric_edges(16, 2**0.5, 21)  # 16 to 16384 pixels
_FRACTIONS = tuple(index / 20 for index in range(1, 20))

FEATURES: dict[str, Feature] = {
    "image_width": Feature("Image width", "px", _SIDES, 1),
    "image_height": Feature("Image height", "px", _SIDES, 1),
    "image_aspect": Feature(
        "Image width / height", "", _compute_geometric_edges(2**-3.25, 2**0.5, 14)
    ),  # 1 is in the middle of a bin
    "image_megapixels": Feature("Image size", "MP", _compute_geometric_edges(0.001, 2, 17)),
    "image_bytes": Feature("File size", "bytes", _compute_geometric_edges(256, 2**0.5, 37), 1),
    "brightness": Feature(
        "Brightness", "of 255", tuple(float(edge) for edge in range(8, 256, 8)), level="example"
    ),
    "contrast": Feature(
        "Contrast", "of 128", tuple(float(edge) for edge in range(4, 128, 4)), level="example"
    ),
    "boxes_per_image": Feature(
        "Boxes per image",
        "",
        (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 200, 500),
        1,
        level="example",
    ),
    "box_width": Feature("Box width", "of the image", _FRACTIONS, level="box"),
    "box_height": Feature("Box height", "of the image", _FRACTIONS, level="box"),
    "box_area": Feature(
        "Box area", "of the image", _compute_geometric_edges(1e-5, 10**0.25, 20), 1e-9, level="box"
    ),
    "box_aspect": Feature(
        "Box width / height", "", _compute_geometric_edges(2**-3.25, 2**0.5, 14), level="box"
    ),
}
"""The features of raw files as decoded, of examples as stored, and of their boxes."""


class Histogram(BaseModel):
    """The counts by bin, and the moments of one feature.

    `total` and `total_of_squares` are in units of its resolution.
    """

    counts: list[int]
    count: int = 0
    total: int = 0
    total_of_squares: int = 0
    minimum: float | None = None
    maximum: float | None = None

    @classmethod
    def empty(cls, feature: str) -> Histogram:
        return cls(counts=[0] * (len(FEATURES[feature].edges) + 1))

    def mean(self, feature: str) -> float | None:
        return self.total * FEATURES[feature].resolution / self.count if self.count else None

    def deviation(self, feature: str) -> float | None:
        """The standard deviation of the measured values, not an estimate for a population."""
        if not self.count:
            return None
        # Integers: no cancellation.
        variance = (self.count * self.total_of_squares - self.total**2) / self.count**2
        return math.sqrt(max(0.0, variance)) * FEATURES[feature].resolution


class HistogramAccumulator:
    """Fills one histogram. It does little, because it is called for every example."""

    def __init__(self, feature: str):
        self._edges, self._per_unit = FEATURES[feature].edges, 1 / FEATURES[feature].resolution
        self._counts = [0] * (len(self._edges) + 1)
        self._count = self._total = self._squares = 0
        self._minimum, self._maximum = math.inf, -math.inf

    def add(self, value: float, times: int = 1) -> None:
        self._counts[bisect.bisect_right(self._edges, value)] += times
        whole = round(value * self._per_unit)
        self._count += times
        self._total += whole * times
        self._squares += whole * whole * times
        if value < self._minimum:
            self._minimum = value
        if value > self._maximum:
            self._maximum = value

    def to_histogram(self) -> Histogram:
        return Histogram(
            counts=self._counts,
            count=self._count,
            total=self._total,
            total_of_squares=self._squares,
            minimum=self._minimum if self._count else None,
            maximum=self._maximum if self._count else None,
        )


def merge_histograms(histograms: Iterable[Histogram]) -> Histogram:
    """The sum of histograms of one feature.

    Raises:
      ValueError: there are no histograms, or they are of different features.
    """
    parts = list(histograms)
    if not parts or len({len(part.counts) for part in parts}) > 1:
        raise ValueError(
            f"histograms of one feature are needed, got {[len(part.counts) for part in parts]} bins"
        )
    return Histogram(
        counts=[sum(column) for column in zip(*(part.counts for part in parts), strict=True)],
        count=sum(part.count for part in parts),
        total=sum(part.total for part in parts),
        total_of_squares=sum(part.total_of_squares for part in parts),
        minimum=min((part.minimum for part in parts if part.minimum is not None), default=None),
        maximum=max((part.maximum for part in parts if part.maximum is not None), default=None),
    )
