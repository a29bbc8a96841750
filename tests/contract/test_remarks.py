"""Sentences about annotations that are valid, and yet may not be what their owner means."""

from __future__ import annotations

import pytest

from pipeline_ops.contract.remarks import (
    describe_counts,
    describe_empty_images,
    describe_most_boxes,
    describe_small_splits,
    describe_unlearned,
)


@pytest.mark.parametrize(
    ("counts", "sentences"),
    [
        ({"Cat": 3, "cat": 21, "dog": 4}, ["Cat (3) and cat (21) differ in case only"]),
        (
            {"STOP": 1, "Stop": 2, "stop": 1200},
            ["STOP (1) and Stop (2) and stop (1,200) differ"],
        ),
        (
            {"traffic light": 9, "traffic_light": 2},
            ["traffic light (9) and traffic_light (2) differ in blanks or underscores only"],
        ),
        (
            {"Ä": 1, "A\u0308": 2},
            ["A\u0308 (2) and Ä (1) differ in case, blanks, underscores"],
        ),
        ({"straße": 5, "STRASSE": 6}, ["STRASSE (6) and straße (5) differ in case only"]),
        ({"class 1": 1, "class 11": 1, "cat": 1, "cap": 1, "1-0": 1, "10": 1}, []),
        (
            {f"{name}{index}": 1 for index in range(7) for name in "aA"},
            [*["A"] * 5, "2 more classes have similar names"],
        ),
    ],
)
def test_classes_that_a_person_may_mean_as_one_are_named(counts, sentences):
    found = describe_counts({"train": counts}, {"train": sum(counts.values())})
    assert len(found) == len(sentences)
    assert all(one.startswith(start) for one, start in zip(found, sentences, strict=True))


def test_images_without_boxes_are_counted_by_split():
    images = {"train": 24, "validation": 4, "test": 4}
    assert describe_empty_images({"train": 12, "validation": 0, "test": 4}, images) == [
        "16 of 32 images have no boxes (train 12 of 24, test 4 of 4)"
    ]
    assert describe_empty_images({"test": 1}, {"test": 1}) == [
        "1 of 1 image has no boxes (test 1 of 1)"
    ]
    assert describe_empty_images(dict.fromkeys(images, 0), images) == []


def test_crowds_are_boxes_that_no_label_counts():
    labels = {"train": {"cat": 20}, "validation": {"cat": 4}, "test": {}}
    assert describe_counts(labels, {"train": 40, "validation": 4, "test": 2}) == [
        "22 of 46 boxes are crowds (iscrowd: 1), which a detector does not learn from "
        "(train 20 of 40, test 2 of 2)"
    ]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("a", ""),
        ("ab", "No training example of b, so the model never learns to find it"),
        (
            "abc",
            "No training example of b, c, so the model never learns to find them, and misses the "
            "1,200 in test",
        ),
        ("bdefghi", "No training example of b, d, e, f, g and 2 more classes, so the model"),
    ],
)
def test_classes_without_training_examples_are_named(names, text):
    labels = {"train": {"a": 3, "b": 0}, "validation": {"b": 4}, "test": {"c": 1200}}
    found = describe_unlearned(labels, list(names))
    assert len(found) == bool(text)
    assert all(one.startswith(text) for one in found)


@pytest.mark.parametrize(
    ("most_boxes", "limit", "text"),
    [
        (100, None, ""),
        (101, None, "An image has 101 boxes. A model answers up to 200 ("),
        (1850, None, "An image has 1,850 boxes. A model answers up to 1,900 ("),
        (600, 700, ""),
        (31, 30, "An image has 31 boxes, and train.model_parameters.max_detections is 30: the"),
        (600, 100, "An image has 600 boxes, and train.model_parameters.max_detections is 100: the"),
    ],
)
def test_an_image_with_more_boxes_than_usual_or_than_a_model_answers_is_named(
    most_boxes, limit, text
):
    found = describe_most_boxes("An image", most_boxes, limit)
    assert bool(found) == bool(text) and "".join(found).startswith(text)


def test_small_validation_and_test_splits_are_named_with_the_weight_of_an_image():
    assert describe_small_splits({"train": 11, "validation": 1, "test": 2}) == [
        "Only 1 image is in the validation split, fewer than 30: one changes a figure by 100%, so "
        "the best epoch and an early stop follow chance. Add images, or raise "
        "preprocess.split.validation",
        "Only 2 images are in the test split, fewer than 30: one changes a figure by 50%, so the "
        "gate and the report follow chance. Add images, or raise preprocess.split.test",
    ]


@pytest.mark.parametrize(("count", "is_small"), [(0, False), (29, True), (30, False)])
def test_a_split_is_small_below_thirty_images(count, is_small):
    assert bool(describe_small_splits({"test": count})) == is_small
