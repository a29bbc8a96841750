"""Ranks, areas and calibration, against scikit-learn: on random scores and on scores that were made
to be difficult."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    average_precision_score,
    precision_recall_curve,
    roc_auc_score,
    top_k_accuracy_score,
)

from pipeline_ops.evaluation.metrics import ModelPredictions, evaluate_model
from pipeline_ops.evaluation.scores import (
    RECALL_THRESHOLDS,
    Ranking,
    compute_calibration_bins,
    compute_calibration_error,
    compute_label_ranks,
)


def make_scores(
    kind: str, seed: int, num_examples: int, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities float32 [N, C] and labels."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, num_classes, num_examples)
    match kind:
        case "random":
            scores = generator.dirichlet(np.ones(num_classes), num_examples)
        case "good":
            scores = (
                generator.dirichlet(np.ones(num_classes), num_examples)
                + 2.0 * np.eye(num_classes)[labels]
            )
        case "ties":  # few distinct values, many of them equal to the label's
            scores = 1.0 + generator.integers(0, 3, (num_examples, num_classes))
        case "constant":
            scores = np.ones((num_examples, num_classes))
        case "certain":  # nothing but zeros and ones
            scores = np.eye(num_classes)[generator.integers(0, num_classes, num_examples)]
        case "nearly equal":  # differ in the last bit of a float32
            scores = 1.0 + 1e-7 * generator.integers(0, 4, (num_examples, num_classes))
        case "one class":
            scores, labels = (
                generator.dirichlet(np.ones(num_classes), num_examples),
                np.zeros(num_examples, int),
            )
    return (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32), labels


SETS = [
    ("random", 1, 500, 10),
    ("good", 2, 800, 7),
    ("ties", 3, 300, 6),
    ("ties", 4, 40, 30),
    ("constant", 5, 50, 4),
    ("certain", 6, 200, 5),
    ("nearly equal", 7, 200, 4),
    ("one class", 8, 30, 3),
    ("random", 9, 1, 3),
    ("random", 10, 2, 2),
    ("good", 11, 5000, 3),
]


@pytest.mark.parametrize("kind, seed, num_examples, num_classes", SETS)
def test_top_k_accuracy_is_that_of_scikit_learn(kind, seed, num_examples, num_classes):
    scores, labels = make_scores(kind, seed, num_examples, num_classes)
    ranks = compute_label_ranks(scores, labels)
    for k in range(1, num_classes):
        theirs = top_k_accuracy_score(
            labels, scores if num_classes > 2 else scores[:, 1], k=k, labels=range(num_classes)
        )
        assert num_classes == 2 or (ranks < k).mean() == pytest.approx(theirs, abs=1e-15)
    assert (ranks < num_classes).all()


@pytest.mark.parametrize("kind, seed, num_examples, num_classes", SETS)
def test_areas_are_those_of_scikit_learn(kind, seed, num_examples, num_classes):
    scores, labels = make_scores(kind, seed, num_examples, num_classes)
    for index in range(num_classes):
        is_positive = labels == index
        ranking = Ranking(scores[:, index], is_positive)
        assert (ranking.roc_auc is None) == (is_positive.all() or not is_positive.any())
        assert (ranking.average_precision is None) == (not is_positive.any())
        if ranking.roc_auc is not None:
            assert ranking.roc_auc == pytest.approx(
                roc_auc_score(is_positive, scores[:, index]), abs=1e-12
            )
        if ranking.average_precision is not None:
            assert ranking.average_precision == pytest.approx(
                average_precision_score(is_positive, scores[:, index]), abs=1e-12
            )


@pytest.mark.parametrize("kind, seed, num_examples, num_classes", SETS)
def test_a_curve_is_the_envelope_of_scikit_learns(kind, seed, num_examples, num_classes):
    scores, labels = make_scores(kind, seed, num_examples, num_classes)
    for index in set(labels.tolist()):
        precision, recall, _ = precision_recall_curve(labels == index, scores[:, index])
        best = [
            precision[recall >= threshold - 1e-12].max()
            if (recall >= threshold - 1e-12).any()
            else 0.0
            for threshold in RECALL_THRESHOLDS
        ]
        ours = Ranking(scores[:, index], labels == index).interpolate_precisions()
        # At recall 0 scikit-learn adds a point of precision 1 that no threshold gives.
        np.testing.assert_allclose(ours[1:], best[1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind, seed, num_examples, num_classes", SETS)
@pytest.mark.parametrize("num_bins", [2, 15])
def test_the_bins_of_the_calibration_are_those_of_scikit_learn(
    kind, seed, num_examples, num_classes, num_bins
):
    scores, labels = make_scores(kind, seed, num_examples, num_classes)
    confidences, is_right = (
        np.clip(scores.max(axis=1).astype(float), 0, 1),
        scores.argmax(axis=1) == labels,
    )
    bins = compute_calibration_bins(confidences, is_right, num_bins)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right, mean = calibration_curve(is_right, confidences, n_bins=num_bins)
    np.testing.assert_allclose([bin.accuracy for bin in bins], right, rtol=0, atol=1e-12)
    np.testing.assert_allclose([bin.confidence for bin in bins], mean, rtol=0, atol=1e-12)
    assert sum(bin.count for bin in bins) == num_examples
    by_hand = sum(bin.count / num_examples * abs(bin.accuracy - bin.confidence) for bin in bins)
    assert compute_calibration_error(bins) == pytest.approx(by_hand, abs=1e-15)


def test_a_probability_on_an_edge_is_in_one_bin_only():
    bins = compute_calibration_bins(
        np.array([0.0, 0.5, 0.5, 1.0]), np.array([False, True, True, True]), 2
    )
    assert [(bin.low, bin.high, bin.count) for bin in bins] == [(0.0, 0.5, 3), (0.5, 1.0, 1)]


@pytest.mark.parametrize("kind, seed, num_examples, num_classes", SETS)
def test_the_means_leave_out_what_has_no_meaning(kind, seed, num_examples, num_classes):
    scores, labels = make_scores(kind, seed, num_examples, num_classes)
    answer = ModelPredictions(
        scores.argmax(axis=1),
        compute_label_ranks(scores, labels),
        scores.max(axis=1).astype(float),
        scores.T,
    )
    evaluation, curves = evaluate_model(labels, answer, [str(c) for c in range(num_classes)], 2)
    areas = [
        roc_auc_score(labels == c, scores[:, c])
        for c in range(num_classes)
        if 0 < (labels == c).sum() < num_examples
    ]
    assert evaluation.metrics.get("macro_roc_auc") == (
        pytest.approx(np.mean(areas), abs=1e-12) if areas else None
    )
    assert sorted(curves.by_class) == sorted(set(labels.tolist()))
    assert curves.mean.shape == (101,)
