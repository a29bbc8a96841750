"""The matches of a detector's boxes with true boxes."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline_ops.evaluation.matching import (
    ImageDetections,
    classify_size,
    compute_pairwise_ious,
    match,
    recommend_min_score,
)
from pipeline_ops.input.saved_model_client import TrueBoxes

A, B, CROWD = [0, 0, 10, 10], [20, 20, 40, 40], [50, 50, 100, 100]


def found(boxes, classes, scores, crowd=False):
    truths = np.array([A, B] + [CROWD] * crowd, float)
    is_crowd = np.array([False, False] + [True] * crowd)
    result = match(
        TrueBoxes("", b"", truths, np.array([0, 1] + [0] * crowd), is_crowd),
        ImageDetections(np.array(boxes, float).reshape(-1, 4), np.array(classes), np.array(scores)),
    )
    return result.truth_indexes.tolist(), result.is_ignored.tolist()


@pytest.mark.parametrize(
    ("boxes", "classes", "scores", "truth_indexes"),
    [
        ([A, B], [0, 1], [0.9, 0.8], [0, 1]),
        (
            [A, A],
            [0, 0],
            [0.6, 0.9],
            [-1, 0],
        ),  # the second of two is a false alarm, and the better score comes first
        ([A], [1], [0.9], [0]),  # another class: confused
        ([[0, 0, 10, 4]], [0], [0.9], [-1]),  # overlaps by 0.4 only
        ([], [], [], []),
    ],
)
def test_each_true_box_is_found_once(boxes, classes, scores, truth_indexes):
    assert found(boxes, classes, scores)[0] == truth_indexes


def test_a_box_of_its_own_class_comes_before_a_nearer_one():
    truths = np.array([[0, 0, 10, 10], [0, 0, 10, 12]], float)
    result = match(
        TrueBoxes("", b"", truths, np.array([1, 0]), np.zeros(2, bool)),
        ImageDetections(np.array([[0, 0, 10, 10]], float), np.array([0]), np.array([0.9])),
    )
    assert result.truth_indexes.tolist() == [1]


def test_what_lies_in_a_crowd_is_ignored():
    assert found([[60, 60, 70, 70], [0, 60, 10, 70]], [0, 0], [0.9, 0.9], crowd=True) == (
        [-1, -1],
        [True, False],
    )


def test_overlaps():
    assert compute_pairwise_ious(np.array([A], float), np.array([A, B, [5, 0, 15, 10]], float))[
        0
    ] == pytest.approx([1, 0, 1 / 3])


@pytest.mark.parametrize(
    ("area", "name"), [(1023, "small"), (1024, "medium"), (9215, "medium"), (9216, "large")]
)
def test_sizes_are_cocos(area, name):
    assert classify_size(area) == name


def answer(scores, right):
    """One scene with a true box for each right answer and one that nobody finds, beside false
    alarms."""
    boxes = np.array([[0, 20 * i, 10, 20 * i + 10] for i in range(len(scores) + 1)], float)
    is_right = np.array(right, bool)
    truths = np.concatenate([boxes[:-1][is_right], boxes[-1:]])
    zeros = np.zeros(len(truths), int)
    return (
        TrueBoxes("", b"", truths, zeros, np.zeros(len(truths), bool)),
        ImageDetections(boxes[:-1], np.zeros(len(scores), int), np.array(scores, float)),
    )


@pytest.mark.parametrize(
    ("scores", "right", "threshold"),
    [
        ([0.3, 0.29, 0.2, 0.1], [True, True, False, False], 0.29),
        ([0.9, 0.8, 0.7, 0.6], [True, False, True, True], 0.6),
        ([0.999, 0.001], [True, False], 0.95),
        ([0.3, 0.3, 0.3, 0.1], [True, False, False, True], 0.1),
        ([0.4], [False], 0.5),
        ([], [], 0.5),
    ],
)
def test_the_recommended_threshold_has_the_largest_f1(scores, right, threshold):
    scenes, detections = zip(answer(scores, right), answer([], []), strict=True)
    assert recommend_min_score(scenes, detections) == pytest.approx(threshold)
    tried = {}
    for hundredths in range(5, 96):
        kept = detections[0].filter_by_score(hundredths / 100 - 1e-9)
        hits = (match(scenes[0], kept).truth_indexes >= 0).sum()
        tried[hundredths / 100] = 2 * hits / (len(kept.scores) + sum(right) + 2)
    assert tried[threshold] == max(tried.values()) or not any(right)
