"""The matches of a detector's boxes with true boxes, and the baseline of a detector."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline_ops.evaluation.detector import (
    answer_mean_boxes,
    count_mistakes,
    evaluate_boxes,
    match_boxes,
    recommend_min_score,
)
from pipeline_ops.served.client import ImageDetections, TrueBoxes

A, B, CROWD = [0, 0, 10, 10], [20, 20, 40, 40], [50, 50, 100, 100]


def found(boxes, classes, scores, crowd=False):
    truths = np.array([A, B] + [CROWD] * crowd, float)
    is_crowd = np.array([False, False] + [True] * crowd)
    truth_indexes, is_ignored = match_boxes(
        TrueBoxes("", b"", truths, np.array([0, 1] + [0] * crowd), is_crowd),
        ImageDetections(np.array(boxes, float).reshape(-1, 4), np.array(classes), np.array(scores)),
    )
    return truth_indexes.tolist(), is_ignored.tolist()


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
        ([[0, 0, 10, 4.99]], [0], [0.9], [-1]),  # overlaps by less than a half
        ([[0, 0, 10, 5]], [0], [0.9], [0]),
        ([[0, 3.34, 10, 13.34]], [0], [0.9], [-1]),  # 0.666 of each, 0.499 of their union
        ([[0, 3.33, 10, 13.33]], [0], [0.9], [0]),
        ([], [], [], []),
    ],
)
def test_each_true_box_is_found_once(boxes, classes, scores, truth_indexes):
    assert found(boxes, classes, scores)[0] == truth_indexes


def test_a_box_of_its_own_class_comes_before_a_nearer_one():
    truths = np.array([[0, 0, 10, 10], [0, 0, 10, 12]], float)
    truth_indexes, _ = match_boxes(
        TrueBoxes("", b"", truths, np.array([1, 0]), np.zeros(2, bool)),
        ImageDetections(np.array([[0, 0, 10, 10]], float), np.array([0]), np.array([0.9])),
    )
    assert truth_indexes.tolist() == [1]


def test_what_lies_in_a_crowd_is_ignored():
    assert found([[60, 60, 70, 70], [0, 60, 10, 70]], [0, 0], [0.9, 0.9], crowd=True) == (
        [-1, -1],
        [True, False],
    )


@pytest.mark.parametrize(
    ("area", "name"), [(1023, "small"), (1024, "medium"), (9215, "medium"), (9216, "large")]
)
def test_sizes_are_cocos(area, name):
    scene = make_scene([(0, 0, 1, area)], [0])
    answer = ImageDetections(scene.boxes, np.array([0]), np.array([0.9]))
    _, by_size = count_mistakes([scene], [answer], (1, 1), 1, 0.5)
    assert by_size == {each: [each == name] * 2 for each in ("small", "medium", "large")}


def test_mistakes_are_counted_by_the_classes_of_truth_and_answer():
    """One box of each kind: right, confused, missed, a crowd; detections also of nothing, of a
    crowd, and below the threshold."""
    right, confused, missed, crowd, nothing = [(0, 20 * i, 10, 20 * i + 10) for i in range(5)]
    scene = make_scene([right, confused, missed, crowd], [0, 0, 1, 1], crowds=1)
    boxes = np.array([right, confused, nothing, crowd, missed], float)
    answer = ImageDetections(boxes, np.array([0, 1, 1, 0, 1]), np.array([0.9] * 4 + [0.4]))
    confusion, by_size = count_mistakes([scene], [answer], (1, 1), 2, 0.5)
    assert confusion.tolist() == [[1, 1, 0], [0, 0, 1], [0, 1, 0]]
    assert by_size["small"] == [3, 1]


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
        hits = (match_boxes(scenes[0], kept)[0] >= 0).sum()
        tried[hundredths / 100] = 2 * hits / (len(kept.scores) + sum(right) + 2)
    assert tried[threshold] == max(tried.values()) or not any(right)


LARGE, SMALL = (0.25, 0.25, 0.75, 0.75), (0.0, 0.0, 0.2, 0.1)


def make_scene(boxes: list[tuple[float, ...]], classes: list[int], crowds: int = 0) -> TrueBoxes:
    """The last `crowds` boxes are crowds."""
    is_crowd = np.arange(len(boxes)) >= len(boxes) - crowds
    return TrueBoxes("key", b"", np.array(boxes).reshape(-1, 4), np.array(classes, int), is_crowd)


def test_a_detector_without_images_answers_a_mean_box_for_each_class_in_the_centre():
    scenes = [
        make_scene([(0.0, 0.0, 0.2, 0.4), LARGE], [2, 0]),
        make_scene([(0.5, 0.5, 0.9, 0.7), (0.1, 0.1, 0.7, 0.7), SMALL], [2, 2, 1], crowds=1),
        make_scene([], []),
        make_scene([], []),
    ]
    answers = answer_mean_boxes(scenes)
    assert len(answers) == 4 and all(answer is answers[0] for answer in answers)
    assert answers[0].classes.tolist() == [2, 0]
    assert answers[0].scores.tolist() == [0.5, 0.25]
    np.testing.assert_allclose(answers[0].boxes, [[0.3, 0.3, 0.7, 0.7], LARGE])


def test_the_baseline_of_a_detector_finds_the_boxes_that_lie_as_all_do():
    """Class a is in the centre of two images of three, class b in a corner of the third one."""
    scenes = [make_scene([LARGE], [0]), make_scene([LARGE], [0]), make_scene([SMALL], [1])]
    found = evaluate_boxes(scenes, answer_mean_boxes(scenes), (100, 100), ["a", "b"]).metrics
    # All boxes of a have one score. The false alarm is the last one of them.
    assert (found["map"], found["map_50"], found["mar_100"]) == pytest.approx((0.5, 0.5, 0.5))
    assert "map_large" not in found and found["map_medium"] == pytest.approx(1.0)


def test_images_without_boxes_have_no_baseline():
    scenes = [make_scene([], [])] * 2
    found = evaluate_boxes(scenes, answer_mean_boxes(scenes), (100, 100), ["a", "b"]).metrics
    assert found == {}
