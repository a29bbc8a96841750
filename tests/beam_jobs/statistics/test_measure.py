"""The measurements of an example, against numpy, and histograms that add up to the whole."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from beam_jobs.stages.stage import Box, Example
from beam_jobs.statistics.summary import (
    Measurements,
    add_up,
    decode_measurements,
    encode_measurements,
    measure_brightness_and_contrast,
    measure_channels,
    measure_example,
    measure_histogram,
    merge_measurements,
)
from pipeline_ops.contract.features import FEATURES, Histogram, merge_histograms


def example(
    seed: int = 0, shape: tuple[int, int, int] = (20, 40, 3), label: str = "cat", boxes=None
) -> Example:
    image = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return Example(f"{seed}", label, b"", image, boxes=boxes)


def measure(*examples: Example, raw_shape=(100, 200, 3)) -> Measurements:
    return add_up(measure_example(raw_shape, 5000, one) for one in examples)


@pytest.mark.parametrize("shape", [(7, 5, 1), (64, 48, 3), (1, 1, 1)])
def test_brightness_and_contrast_are_mean_and_deviation_of_all_values(shape):
    image = example(1, shape).image
    assert measure_brightness_and_contrast(image) == pytest.approx((image.mean(), image.std()))


def test_of_a_large_image_evenly_spread_rows_are_measured():
    image = np.zeros((1000, 30, 3), np.uint8)
    image[500:] = 200
    assert measure_brightness_and_contrast(image) == pytest.approx((100, 100), abs=2)


def test_swapped_channels_of_colour_images_are_seen_and_grey_images_have_none():
    image = example(2, (70, 30, 3)).image
    image[..., 2] //= 4
    for pixels in (image, image[..., ::-1]):
        means = measure_channels(pixels)
        assert means == pytest.approx(pixels.mean((0, 1)), abs=1e-5)
    assert means[0] < 50 < means[2]
    assert measure_channels(example(2, (7, 3, 1)).image) is None
    features = measure(example(), example(shape=(20, 40, 1))).features
    assert [features[name].count for name in ("red", "blue", "brightness")] == [1, 1, 2]


def test_a_histogram_of_single_values_is_that_of_all():
    values = np.random.default_rng(1).lognormal(0, 2, 300).tolist()
    histogram = Histogram.make_empty("box_aspect")
    for value in values:
        histogram.add("box_aspect", value)
    assert histogram == measure_histogram("box_aspect", values)


def test_a_raw_image_is_measured_as_it_was_before_the_stages():
    features = measure(example()).features
    found = {
        name: features[name].minimum
        for name in (
            "image_height",
            "image_width",
            "image_aspect",
            "image_megapixels",
            "image_bytes",
        )
    }
    assert found == {
        "image_height": 100,
        "image_width": 200,
        "image_aspect": 2,
        "image_megapixels": 0.02,
        "image_bytes": 5000,
    }


def test_boxes_are_measured_in_fractions_of_the_stored_image_by_class():
    boxes = (Box(0, 0, 10, 10, "cell"), Box(5, 4, 20, 40, "plate"))
    measurements = measure(example(label="", boxes=boxes))
    assert {
        name: histogram.maximum for name, histogram in measurements.by_class["cell"].items()
    } == {
        "box_width": 0.25,
        "box_height": 0.5,
        "box_area": 0.125,
        "box_aspect": 1,
    }
    assert measurements.by_class["plate"]["box_width"].maximum == 0.9
    assert measurements.features["box_width"].count == 2
    assert measurements.features["boxes_per_image"].maximum == 2


def test_numbers_that_went_through_an_index_measure_the_same():
    boxes = (Box(0, 0, 10.1, 1 / 3, "cell"), Box(5, 4, 20, 40, "plate"))
    examples = [example(3, boxes=boxes), example(4), example(5, label=""), example(6, boxes=())]
    text = encode_measurements([measure_example((100, 200, 3), 5000, one) for one in examples])
    assert add_up(decode_measurements(text)) == measure(*examples)
    assert (encode_measurements([]), decode_measurements("")) == ("", [])


def test_what_is_missing_is_counted():
    assert measure(example(label="", boxes=()), example(label=""), example()).missing == {
        "no_boxes": 1,
        "no_label": 1,
    }


def test_images_for_classification_have_no_boxes_to_measure():
    assert {name for name in measure(example()).features if "box" in name} == set()


def test_shards_add_up_to_what_one_shard_would_have_measured():
    examples = [
        example(
            seed,
            boxes=(Box(0, 0, seed + 1, 3.3, "even" if seed % 2 else "odd"),) * (seed % 3),
            label="",
        )
        for seed in range(9)
    ]
    parts = [
        measure(*examples[:2]),
        measure(*examples[2:3]),
        measure(*examples[3:]),
        Measurements(),
    ]
    assert merge_measurements(reversed(parts)) == measure(*examples)


def test_what_was_measured_survives_its_way_through_json():
    measurements = measure(example(label="", boxes=(Box(0, 0, 10, 10, "cell"),)))
    assert Measurements.model_validate_json(measurements.model_dump_json()) == measurements


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
    assert measure_histogram(feature, values).counts == wanted


def test_the_moments_are_those_of_numpy():
    values = np.random.default_rng(1).uniform(0, 255, 5000).round(6)
    histogram = measure_histogram("brightness", values.tolist())
    assert histogram.mean("brightness") == pytest.approx(values.mean(), abs=1e-9)
    assert histogram.deviation("brightness") == pytest.approx(values.std(), abs=1e-9)
    assert (histogram.minimum, histogram.maximum) == (values.min(), values.max())


def test_a_small_deviation_around_a_large_mean_does_not_cancel():
    values = [254.000001, 254.000003]
    assert measure_histogram("brightness", values).deviation("brightness") == pytest.approx(1e-6)


def test_parts_add_up_to_the_whole_to_the_last_digit_in_any_order():
    values = [random.Random(3).uniform(0, 2) for _ in range(300)]
    parts = [
        measure_histogram("box_aspect", values[start : start + 7]) for start in range(0, 300, 7)
    ]
    random.Random(4).shuffle(parts)
    assert merge_histograms(parts) == measure_histogram("box_aspect", values)


def test_nothing_adds_nothing():
    some, none = measure_histogram("image_width", [20, 30]), Histogram([0] * 22)
    assert merge_histograms([some, none]) == some
    assert none.mean("image_width") is None
    assert none.deviation("image_width") is None


def test_histograms_of_different_features_do_not_add_up():
    with pytest.raises(ValueError):
        merge_histograms([Histogram([0] * 22), Histogram([0] * 32)])
