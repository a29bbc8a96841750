"""The baseline: the metrics of the answers of a model that has not looked at the images."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline_ops.evaluation.baseline import answer_class_shares, answer_mean_boxes
from pipeline_ops.evaluation.detector import evaluate_boxes
from pipeline_ops.evaluation.metrics import evaluate_model
from pipeline_ops.input.saved_model_client import TrueBoxes

LARGE, SMALL = (0.25, 0.25, 0.75, 0.75), (0.0, 0.0, 0.2, 0.1)


def compute_classifier_baseline(labels: list[int], num_classes: int, top_k: int) -> dict:
    truth = np.array(labels)
    answers = answer_class_shares(truth, num_classes)
    return evaluate_model(truth, answers, [*"abcd"][:num_classes], top_k)[0].metrics


def test_the_baseline_of_a_classifier_is_its_most_frequent_class():
    # Class d has no test image, so no mean includes it.
    assert compute_classifier_baseline([0, 1, 1, 1, 1, 1, 2, 2], 4, top_k=2) == pytest.approx(
        {
            "accuracy": 5 / 8,
            "top_k_accuracy": 7 / 8,
            "macro_precision": 5 / 8 / 3,
            "macro_recall": 1 / 3,
            "macro_f1": 10 / 13 / 3,
            "worst_class_recall": 0.0,
            "macro_roc_auc": 0.5,
            "macro_average_precision": 1 / 3,
            "calibration_error": 0.0,
        }
    )


def test_the_baseline_of_a_single_class_is_perfect_and_has_no_roc_curve():
    found = compute_classifier_baseline([1, 1, 1], 2, top_k=1)
    assert found["accuracy"] == found["macro_f1"] == 1.0
    assert "macro_roc_auc" not in found


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
    scenes = [
        make_scene([LARGE], [0]),
        make_scene([LARGE], [0]),
        make_scene([SMALL], [1]),
    ]
    found = evaluate_boxes(scenes, answer_mean_boxes(scenes), (100, 100), ["a", "b"]).metrics
    # All boxes of a have one score. The false alarm is the last one of them.
    assert (found["map"], found["map_50"], found["mar_100"]) == pytest.approx((0.5, 0.5, 0.5))
    assert (found["map_large"], found["map_medium"]) == (None, pytest.approx(1.0))


def test_images_without_boxes_have_no_baseline():
    scenes = [make_scene([], [])] * 2
    found = evaluate_boxes(scenes, answer_mean_boxes(scenes), (100, 100), ["a", "b"]).metrics
    assert set(found.values()) == {None}
