"""The stage filter."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from beam_jobs.stages.filter import Filter, check, filter, map_class
from beam_jobs.stages.stage import Box, Example, Skip

EXAMPLE = Example("cat/1.png", "cat", b"the file", np.zeros((20, 30, 3), np.uint8))
BOXES = EXAMPLE.with_boxes([Box(0, 0, 5, 5, "cat"), Box(5, 5, 9, 9, "dog")])


@pytest.mark.parametrize(
    "limits, reason",
    [
        ({"min_side": 21}, "too_small"),
        ({"min_area": 601}, "too_small"),
        ({"max_side": 29}, "too_large"),
        ({"max_area": 599}, "too_large"),
        ({"min_aspect": 1.51}, "aspect"),
        ({"max_aspect": 1.49}, "aspect"),
        ({"classes": ("dog", "cow")}, "class"),
    ],
)
def test_what_is_not_wanted_is_skipped_with_its_reason(limits, reason):
    with pytest.raises(Skip) as skip:
        filter(EXAMPLE, Filter(**limits))
    assert skip.value.reason == reason


def test_limits_are_inclusive_and_what_is_wanted_is_not_touched():
    wanted = Filter(
        min_side=20,
        max_side=30,
        min_area=600,
        max_area=600,
        min_aspect=1.5,
        max_aspect=1.5,
        classes=["cat"],
    )
    assert filter(EXAMPLE, wanted) is EXAMPLE


def test_boxes_of_other_classes_go_and_the_example_stays():
    assert filter(BOXES, Filter(classes=["dog"])).boxes == BOXES.boxes[1:]
    assert filter(BOXES, Filter(classes=["cow"])).boxes == ()
    assert filter(BOXES, Filter(classes=["dog"])).is_original


def test_min_boxes_counts_what_is_left_of_them():
    assert filter(BOXES, Filter(min_boxes=2)) is BOXES
    with pytest.raises(Skip, match="too_few_boxes"):
        filter(BOXES, Filter(min_boxes=2, classes=["dog"]))


def test_classes_that_are_not_kept_are_gone_from_the_class_names():
    assert [map_class(name, Filter(classes=["cat"])) for name in ("cat", "dog")] == ["cat", None]
    assert map_class("dog", Filter(min_side=3)) == "dog"


def test_what_cannot_be_filtered_is_refused():
    assert check(Filter(min_boxes=1), "detection", ["cat"]) is None
    assert "min_boxes is for detection" in check(Filter(min_boxes=1), "classification", ["cat"])
    assert check(Filter(classes=["catt"]), "detection", ["cat", "dog"]) == (
        "there is no class 'catt' before this stage; the nearest valid name is 'cat'"
    )


@pytest.mark.parametrize(
    "parameters, rule",
    [
        ({}, "needs at least one of min_side"),
        ({"classes": []}, "at least 1"),
        ({"min_area": 5, "max_area": 4}, r"min_area must be at most max_area \(4\), got 5"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(parameters, rule):
    with pytest.raises(ValidationError, match=rule):
        Filter(**parameters)
