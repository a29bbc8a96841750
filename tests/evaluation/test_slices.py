"""Which value of a slice an example has."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline_ops.config.evaluate import Slice
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.metrics import ModelPredictions, build_slice_groups
from pipeline_ops.evaluation.slices import (
    MISSING_VALUE,
    SliceValues,
)
from pipeline_ops.served.client import EncodedBatch


def batch(keys=("a/b/1.png", "2.png"), sizes=(3, 40), **features) -> EncodedBatch:
    return EncodedBatch(
        list(keys),
        np.array([b"x" * size for size in sizes], object),
        np.zeros(len(keys), int),
        features,
    )


def collect(slices, *batches):
    values = SliceValues(slices)
    for each in batches:
        values.add(each)
    return {name: found.tolist() for name, found in values.join().items()}


@pytest.mark.parametrize(
    "part, features, values",
    [
        (Slice(by="folder"), {}, ["a/b", MISSING_VALUE]),
        (Slice(by="folder", folder_depth=1), {}, ["a", MISSING_VALUE]),
        (Slice(by="image_bytes", edges=[10.0]), {}, ["below 10", "10 and more"]),
        (Slice(by="camera"), {"camera": [b"front", None]}, ["front", MISSING_VALUE]),
        (Slice(by="camera"), {"camera": [b"\xff<b>", b""]}, ["\\xff<b>", ""]),
        (Slice(by="width"), {"width": [640, 0.5]}, ["640", "0.5"]),
        (Slice(by="width", edges=[32.0, 96.0]), {"width": [32, 95.9]}, ["32 to 96", "32 to 96"]),
        (Slice(by="width", edges=[32.0, 96.0]), {"width": [96, 31]}, ["96 and more", "below 32"]),
    ],
)
def test_an_example_has_the_value_that_its_key_size_or_feature_says(part, features, values):
    assert collect([part], batch(**features)) == {part.title: values}
    assert collect([part], *[batch(**features)] * 2) == {part.title: values * 2}


def test_edges_for_text_are_refused():
    with pytest.raises(DataError, match="camera has edges, but 'front' is not a number"):
        collect([Slice(by="camera", edges=[1.0])], batch(camera=[b"front", b"back"]))


def test_a_feature_that_no_example_has_is_refused():
    with pytest.raises(DataError, match="no test example has the feature 'camera'"):
        collect([Slice(by="camera")], batch(camera=[None, None]))


def test_a_slice_of_too_many_values_is_refused():
    with pytest.raises(DataError, match="id has 101 values"):
        collect([Slice(by="id")], batch([str(n) for n in range(101)], [1] * 101, id=range(101)))


@pytest.mark.parametrize(
    "values", [["below 8", "8 to 32", "32 to 96", "96 and more"], [MISSING_VALUE, "day", "night"]]
)
def test_ranges_stand_in_the_order_of_their_numbers_and_other_values_in_that_of_their_names(values):
    labels = np.zeros(len(values), int)
    answers = ModelPredictions(labels, labels == 0, np.ones(len(values)), np.empty((0, 0)))
    groups = build_slice_groups(labels, [answers], {"size": np.array(values[::-1])}, ["a", "b"])
    assert [group.value for group in groups] == values
