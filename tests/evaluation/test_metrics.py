"""The figures of a classifier, against libraries that are trusted with them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from pipeline_ops.evaluation.bootstrap import TopKPredictions
from pipeline_ops.evaluation.metrics import (
    compare,
    compute_mcnemar_p_value,
    compute_wilson_interval_95,
    evaluate_predictions,
)


def make_random_predictions(
    seed: int, num_examples: int, num_classes: int, noise: float
) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, num_classes, num_examples)
    wrong = generator.random(num_examples) < noise
    return labels, np.where(wrong, generator.integers(0, num_classes, num_examples), labels)


@pytest.mark.parametrize(
    "seed, num_examples, num_classes, noise",
    [
        (1, 1000, 10, 0.1),
        (2, 1000, 10, 1.0),
        (3, 37, 3, 0.5),
        (4, 1, 2, 0.0),
        (5, 12, 40, 0.5),
        (6, 5000, 2, 0.02),
    ],
)
def test_the_figures_are_those_of_scikit_learn(seed, num_examples, num_classes, noise):
    labels, classes = make_random_predictions(seed, num_examples, num_classes, noise)
    answers = TopKPredictions(classes, classes == labels)
    ours = evaluate_predictions(labels, answers, [str(c) for c in range(num_classes)])
    every, present = list(range(num_classes)), sorted(set(labels.tolist()))
    precision, recall, f1, support = precision_recall_fscore_support(
        labels, classes, labels=every, zero_division=0.0
    )
    assert ours.confusion == confusion_matrix(labels, classes, labels=every).tolist()
    assert [c.support for c in ours.classes] == support.tolist()
    np.testing.assert_allclose(
        [[c.precision, c.recall, c.f1] for c in ours.classes],
        np.c_[precision, recall, f1],
        rtol=0,
        atol=1e-12,
    )
    means = precision_recall_fscore_support(
        labels, classes, labels=present, average="macro", zero_division=0.0
    )
    np.testing.assert_allclose(
        [ours.metrics[name] for name in ("macro_precision", "macro_recall", "macro_f1")],
        means[:3],
        rtol=0,
        atol=1e-12,
    )
    assert ours.metrics["accuracy"] == pytest.approx((labels == classes).mean(), abs=1e-15)
    assert ours.metrics["worst_class_recall"] == recall[present].min()


def test_a_class_without_test_examples_is_no_part_of_any_mean():
    labels, classes = np.array([0, 0, 1, 1]), np.array([0, 0, 1, 2])
    answers = TopKPredictions(classes, classes == labels)
    ours = evaluate_predictions(labels, answers, ["a", "b", "never seen"])
    assert ours.metrics["worst_class_recall"] == 0.5
    assert ours.metrics["macro_recall"] == 0.75
    assert ours.classes[2].support == 0


@pytest.mark.parametrize(
    "correct, total, low, high",
    [  # R: binom::binom.wilson
        (177, 180, 0.9521518, 0.9943159),
        (0, 10, 0.0, 0.2775328),
        (10, 10, 0.7224672, 1.0),
        (50, 100, 0.4038315, 0.5961685),
    ],
)
def test_the_interval_is_wilsons(correct, total, low, high):
    assert compute_wilson_interval_95(correct, total) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize(
    "first, second", [(9, 5), (5, 9), (0, 10), (1, 0), (7, 7), (120, 80), (600, 500)]
)
def test_mcnemars_p_value_is_that_of_the_binomial_test(first, second):
    assert compute_mcnemar_p_value(first, second) == pytest.approx(
        binomtest(first, first + second).pvalue, rel=1e-9
    )


def test_models_that_never_differ_are_equal_for_certain():
    assert compute_mcnemar_p_value(0, 0) == 1.0


def test_mcnemars_test_is_exact_where_a_power_of_two_overflows():
    assert 0 < compute_mcnemar_p_value(5000, 5400) < 1e-4


def test_a_comparison_counts_every_example_once():
    labels, first = make_random_predictions(7, 500, 5, 0.2)
    _, second = make_random_predictions(7, 500, 5, 0.4)
    paired = compare(labels, first, second)
    assert (
        paired.both_right
        + paired.only_challenger_right
        + paired.only_champion_right
        + paired.both_wrong
        == 500
    )
    assert paired.both_right + paired.only_challenger_right == (labels == first).sum()
    assert paired.both_right + paired.only_champion_right == (labels == second).sum()
