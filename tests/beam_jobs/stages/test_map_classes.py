"""The stage map_classes."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from beam_jobs.stages.map_classes import MapClasses, check, map_class, map_classes
from beam_jobs.stages.stage import Box, Example, Skip

IMAGE = np.zeros((4, 4, 3), np.uint8)
PETS = MapClasses(rename={"kitten": "cat", "puppy": "dog"}, drop=["unclear"])


def test_a_label_gets_its_new_name_and_the_pixels_their_own_bytes():
    after = map_classes(Example("a", "kitten", b"the file", IMAGE), PETS)
    assert (after.label, after.is_original) == ("cat", True)
    assert map_classes(Example("a", "cow", b"the file", IMAGE), PETS).label == "cow"


def test_an_example_of_a_dropped_class_is_skipped():
    with pytest.raises(Skip, match="class"):
        map_classes(Example("a", "unclear", b"the file", IMAGE), PETS)


def test_boxes_get_their_new_names_and_those_of_dropped_classes_go():
    before = Example(
        "a",
        "",
        b"the file",
        IMAGE,
        boxes=tuple(Box(0, 0, 1, 1, label) for label in ("kitten", "unclear", "cow", "cat")),
    )
    assert [box.label for box in map_classes(before, PETS).boxes] == ["cat", "cow", "cat"]


def test_the_class_names_follow():
    assert [map_class(name, PETS) for name in ("kitten", "cat", "unclear")] == [
        "cat",
        "cat",
        None,
    ]


def test_classes_can_change_names_with_one_another():
    assert [map_class(name, MapClasses(rename={"a": "b", "b": "a"})) for name in "ab"] == [
        "b",
        "a",
    ]


def test_a_class_that_is_not_there_is_told_with_the_nearest():
    assert check(PETS, "classification", ["kitten", "puppy", "unclear"]) is None
    assert check(PETS, "classification", ["kitten", "pupy", "unclear"]) == (
        "there is no class 'puppy' before this stage; the nearest valid name is 'pupy'"
    )


@pytest.mark.parametrize(
    "parameters, rule",
    [
        ({}, "needs rename, drop, or both"),
        ({"rename": {"a": "b"}, "drop": ["a"]}, "a cannot be both renamed and dropped"),
    ],
)
def test_a_map_that_makes_no_sense_is_refused(parameters, rule):
    with pytest.raises(ValidationError, match=rule):
        MapClasses(**parameters)
