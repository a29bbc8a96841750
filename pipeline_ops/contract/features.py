"""The features of images that statistics count, their histograms, and the distance of two of them.

Data sets and the servers of models count the same features in the same bins. So the histograms of
shards, windows and servers add up, and those of training and production can be compared bin by bin.
The sums are integers, of values in units of `resolution`. Adding them up is exact in any order.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal


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
    level: Literal["raw", "example", "box", "answer"] = "raw"


def _compute_geometric_edges(first: float, ratio: float, count: int) -> tuple[float, ...]:
    """A geometric sequence, rounded so that it does not depend on the machine's `pow`."""
    return tuple(float(f"{first * ratio**index:.4g}") for index in range(count))


_SIDES = _compute_geometric_edges(16, 2**0.5, 21)  # 16 to 16384 pixels
_ASPECTS = _compute_geometric_edges(2**-3.25, 2**0.5, 14)  # 1 is in the middle of a bin
_MEGAPIXELS = _compute_geometric_edges(0.001, 2, 17)
_BYTES = _compute_geometric_edges(256, 2**0.5, 37)
_BRIGHTNESS = tuple(float(edge) for edge in range(8, 256, 8))
_CONTRAST = tuple(float(edge) for edge in range(4, 128, 4))
_COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 200, 500)
_FRACTIONS = tuple(index / 20 for index in range(1, 20))
_AREAS = _compute_geometric_edges(1e-5, 10**0.25, 20)

FEATURES: dict[str, Feature] = {
    "image_width": Feature("Image width", "px", _SIDES, 1),
    "image_height": Feature("Image height", "px", _SIDES, 1),
    "image_aspect": Feature("Image width / height", "", _ASPECTS),
    "image_megapixels": Feature("Image size", "MP", _MEGAPIXELS),
    "image_bytes": Feature("File size", "bytes", _BYTES, 1),
    "brightness": Feature("Brightness", "of 255", _BRIGHTNESS, level="example"),
    "contrast": Feature("Contrast", "of 128", _CONTRAST, level="example"),
    "red": Feature("Red", "of 255", _BRIGHTNESS, level="example"),
    "green": Feature("Green", "of 255", _BRIGHTNESS, level="example"),
    "blue": Feature("Blue", "of 255", _BRIGHTNESS, level="example"),
    "boxes_per_image": Feature("Boxes per image", "", _COUNTS, 1, level="example"),
    "box_width": Feature("Box width", "of the image", _FRACTIONS, level="box"),
    "box_height": Feature("Box height", "of the image", _FRACTIONS, level="box"),
    "box_area": Feature("Box area", "of the image", _AREAS, 1e-9, level="box"),
    "box_aspect": Feature("Box width / height", "", _ASPECTS, level="box"),
    "score": Feature("Score of the answer", "", _FRACTIONS, level="answer"),
}
"""The features of raw files as decoded, of examples as stored, of their boxes, and of answers.

Data sets have no answers. `red`, `green` and `blue` are the means of colour images.
"""
CHANNELS = ("red", "green", "blue")
LABELS = "labels"
"""The name of the distribution of classes among the features."""


@dataclasses.dataclass
class Histogram:
    """The counts by bin, and the moments of one feature in units of its resolution."""

    counts: list[int]
    count: int = 0
    total: int = 0
    total_of_squares: int = 0
    minimum: float | None = None
    maximum: float | None = None

    @classmethod
    def make_empty(cls, feature: str) -> Histogram:
        return cls([0] * (len(FEATURES[feature].edges) + 1))

    def add(self, feature: str, value: float) -> None:
        """Counts one value."""
        whole = round(value / FEATURES[feature].resolution)
        self.counts[bisect.bisect_right(FEATURES[feature].edges, value)] += 1
        self.count += 1
        self.total += whole
        self.total_of_squares += whole * whole
        self.minimum = value if self.minimum is None else min(self.minimum, value)
        self.maximum = value if self.maximum is None else max(self.maximum, value)

    def mean(self, feature: str) -> float | None:
        return self.total * FEATURES[feature].resolution / self.count if self.count else None

    def deviation(self, feature: str) -> float | None:
        """The standard deviation of the measured values, not an estimate for a population."""
        if not self.count:
            return None
        # Integers: no cancellation.
        variance = (self.count * self.total_of_squares - self.total**2) / self.count**2
        return math.sqrt(max(0.0, variance)) * FEATURES[feature].resolution


def merge_histograms(histograms: Iterable[Histogram]) -> Histogram:
    """The sum of one or more histograms of a feature. Raises ValueError: of several features."""
    parts = list(histograms)
    return Histogram(
        counts=[sum(column) for column in zip(*(part.counts for part in parts), strict=True)],
        count=sum(part.count for part in parts),
        total=sum(part.total for part in parts),
        total_of_squares=sum(part.total_of_squares for part in parts),
        minimum=min((part.minimum for part in parts if part.minimum is not None), default=None),
        maximum=max((part.maximum for part in parts if part.maximum is not None), default=None),
    )


def compare_histograms(
    pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]],
) -> list[tuple[str, float, float]]:
    """The Jensen-Shannon and the L-infinity distance of each pair, the largest one first.

    Pairs with other numbers of bins, or with an empty histogram, are left out.
    """
    found = [
        (name, round(jensen_shannon(p, q), 6), round(l_infinity(p, q), 6))
        for name, (p, q) in pairs.items()
        if len(p) == len(q) and any(p) and any(q)
    ]
    return sorted(found, key=lambda each: (-each[1], each[0]))


def align_labels(ours: Mapping[str, int], theirs: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """The counts of all classes that one of the two has, in the same order."""
    names = sorted(ours.keys() | theirs.keys())
    p, q = ([each.get(name, 0) for name in names] for each in (ours, theirs))
    return p, q


def jensen_shannon(p: Sequence[float], q: Sequence[float]) -> float:
    """The Jensen-Shannon distance, base 2, of two histograms with the same bins, none empty."""
    p, q = _normalize(p), _normalize(q)
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    pairs = zip([*p, *q], [*middle, *middle], strict=True)
    return math.sqrt(max(0.0, math.fsum(a * math.log2(a / b) for a, b in pairs if a) / 2))


def l_infinity(p: Sequence[float], q: Sequence[float]) -> float:
    """The largest difference of a bin's share in two histograms with the same bins, none empty."""
    return max(abs(a - b) for a, b in zip(_normalize(p), _normalize(q), strict=True))


def _normalize(counts: Sequence[float]) -> list[float]:
    total = sum(counts)
    return [count / total for count in counts]


def get_title(feature: str) -> str:
    """The title of a feature or of the classes on pages. An unknown feature has its name."""
    if feature == LABELS:
        return "Classes"
    return FEATURES[feature].title if feature in FEATURES else feature
