"""The distances of a data set from its reference. Pure: two statistics in, distances out.

Both distances lie between 0 (equal) and 1 (nothing in common), for every feature and for the
classes:

- Jensen-Shannon: the square root of the divergence in bits (Lin 1991, Endres and Schindelin 2003).
  It detects a change of the whole shape.
- L-infinity: the largest change of the share of any one bin. It detects a single peak.

The training splits are compared. Two samples of the same source have a distance above 0. With n
examples each and b filled bins, chance alone gives a Jensen-Shannon distance of about
sqrt(b / 5.5 n), which is 0.05 for 1,500 examples in 20 bins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from beam_jobs.statistics.histogram import FEATURES, Histogram
from pipeline_ops.config.preprocess import Drift

LABELS = "labels"


class Distance(BaseModel, frozen=True):
    """The distance of one feature, or of the classes (`labels`)."""

    feature: str
    jensen_shannon: float
    l_infinity: float
    is_above: bool
    """True if one of the two distances is above its threshold."""


def compute_distances(
    ours: Mapping[str, Histogram],
    our_labels: Mapping[str, int],
    theirs: Mapping[str, Histogram],
    their_labels: Mapping[str, int],
    thresholds: Drift,
) -> list[Distance]:
    """The distances of the classes and of every feature that both have measured.

    The largest distance comes first.
    """
    labels = sorted(our_labels.keys() | their_labels.keys())
    pairs: dict[str, tuple[list[int], list[int]]] = {
        LABELS: (
            [our_labels.get(name, 0) for name in labels],
            [their_labels.get(name, 0) for name in labels],
        )
    }
    pairs |= {
        name: (ours[name].counts, theirs[name].counts)
        for name in FEATURES
        if name in ours and name in theirs
    }
    found = [
        _compute_distance(name, p, q, thresholds)
        for name, (p, q) in pairs.items()
        if len(p) == len(q) and any(p) and any(q)
    ]
    return sorted(found, key=lambda distance: (-distance.jensen_shannon, distance.feature))


def _compute_distance(
    feature: str, p: Sequence[int], q: Sequence[int], thresholds: Drift
) -> Distance:
    js, linf = round(jensen_shannon(p, q), 6), round(l_infinity(p, q), 6)
    return Distance(
        feature=feature,
        jensen_shannon=js,
        l_infinity=linf,
        is_above=js > thresholds.max_js_distance or linf > thresholds.max_linf_distance,
    )


def jensen_shannon(p: Sequence[float], q: Sequence[float]) -> float:
    """The Jensen-Shannon distance, base 2, of two histograms with the same bins.

    Neither histogram may be empty.
    """
    p, q = _normalize(p), _normalize(q)
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return math.sqrt(
        max(0.0, (_compute_divergence(p, middle) + _compute_divergence(q, middle)) / 2)
    )


def l_infinity(p: Sequence[float], q: Sequence[float]) -> float:
    """The largest difference of a bin's share between two histograms with the same bins.

    Neither histogram may be empty.
    """
    return max(abs(a - b) for a, b in zip(_normalize(p), _normalize(q), strict=True))


def _compute_divergence(p: Sequence[float], q: Sequence[float]) -> float:
    """The Kullback-Leibler divergence in bits. `q` is positive wherever `p` is."""
    return math.fsum(a * math.log2(a / b) for a, b in zip(p, q, strict=True) if a)


def _normalize(counts: Sequence[float]) -> list[float]:
    total = sum(counts)
    return [count / total for count in counts]
