"""Histograms: bins, exact moments, and that parts add up to the whole."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from beam_jobs.statistics.histogram import (
    FEATURES,
    Histogram,
    HistogramAccumulator,
    merge_histograms,
)


def measured(feature: str, values) -> Histogram:
    meter = HistogramAccumulator(feature)
    for value in values:
        meter.add(value)
    return meter.to_histogram()


@pytest.mark.parametrize("feature", FEATURES)
def test_the_edges_of_every_feature_rise(feature):
    edges = FEATURES[feature].edges
    assert all(low < high for low, high in zip(edges, edges[1:], strict=False))
    assert len(edges) >= 13


@pytest.mark.parametrize("feature", FEATURES)
def test_a_value_is_counted_as_numpy_counts_it(feature):
    edges = FEATURES[feature].edges
    values = [0.0, *edges, *(edge * 1.001 for edge in edges), edges[-1] * 100]
    wanted = np.histogram(values, [-math.inf, *edges, math.inf])[0].tolist()
    assert measured(feature, values).counts == wanted


def test_the_moments_are_those_of_numpy():
    values = np.random.default_rng(1).uniform(0, 255, 5000).round(6)
    histogram = measured("brightness", values.tolist())
    assert histogram.mean("brightness") == pytest.approx(values.mean(), abs=1e-9)
    assert histogram.deviation("brightness") == pytest.approx(values.std(), abs=1e-9)
    assert (histogram.minimum, histogram.maximum) == (values.min(), values.max())


def test_a_small_deviation_around_a_large_mean_does_not_cancel():
    values = [254.000001, 254.000003]
    assert measured("brightness", values).deviation("brightness") == pytest.approx(1e-6)


def test_parts_add_up_to_the_whole_to_the_last_digit_in_any_order():
    values = [random.Random(3).uniform(0, 2) for _ in range(300)]
    parts = [measured("box_aspect", values[start : start + 7]) for start in range(0, 300, 7)]
    random.Random(4).shuffle(parts)
    assert merge_histograms(parts) == measured("box_aspect", values)


def test_nothing_adds_nothing():
    some = measured("image_width", [20, 30])
    assert merge_histograms([some, Histogram.empty("image_width")]) == some
    assert Histogram.empty("image_width").mean("image_width") is None
    assert Histogram.empty("image_width").deviation("image_width") is None


def test_histograms_of_different_features_do_not_add_up():
    with pytest.raises(ValueError, match="histograms of one feature are needed"):
        merge_histograms([Histogram.empty("image_width"), Histogram.empty("brightness")])
