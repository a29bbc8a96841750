"""The figures of a classifier, against libraries that are trusted with them, and their intervals:
drawn by cells, they are those of examples drawn one by one, and they hold what they promise."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    confusion_matrix,
    precision_recall_curve,
    precision_recall_fscore_support,
    roc_auc_score,
    top_k_accuracy_score,
)

from pipeline_ops.evaluation import metrics
from pipeline_ops.evaluation.classifier import answer_class_shares
from pipeline_ops.evaluation.metrics import (
    ModelPredictions,
    compare_answers,
    compute_calibration_bins,
    compute_calibration_error,
    compute_interval_95,
    compute_wilson_interval_95,
    draw_samples,
    evaluate_counts,
    evaluate_model,
    find_in_top_k,
)
from pipeline_ops.precision_recall import RECALL_THRESHOLDS

RATES = ("precision", "recall", "f1")
MEANS = ("macro_precision", "macro_recall", "macro_f1")


def make_answers(labels: np.ndarray, classes: np.ndarray, extra: float = 0.0) -> ModelPredictions:
    """Answers without probabilities. `extra` is the share of labels in the top k anyway."""
    is_near = np.random.default_rng(4).random(len(labels)) < extra
    return ModelPredictions(
        classes, (classes == labels) | is_near, np.ones(len(labels)), np.empty((0, len(labels)))
    )


def make_random_answers(
    seed: int, num_examples: int, num_classes: int, noise: float
) -> tuple[np.ndarray, ModelPredictions]:
    """Labels that do not depend on the seed, and answers of which this share is random."""
    labels = np.random.default_rng(0).integers(0, num_classes, num_examples)
    generator = np.random.default_rng(seed)
    wrong = generator.random(num_examples) < noise
    classes = np.where(wrong, generator.integers(0, num_classes, num_examples), labels)
    return labels, make_answers(labels, classes, extra=0.3)


def compute_rates(labels: np.ndarray, classes: np.ndarray, average: str | None = None) -> list:
    """Precision, recall and F1 by scikit-learn: of each class that has a label, or their means."""
    present = sorted(set(labels.tolist()))
    return precision_recall_fscore_support(
        labels, classes, labels=present, average=average, zero_division=0.0
    )[:3]


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
    labels, answers = make_random_answers(seed, num_examples, num_classes, noise)
    ours = evaluate_counts(labels, answers, [str(c) for c in range(num_classes)])
    every, present = list(range(num_classes)), sorted(set(labels.tolist()))
    *rates, support = precision_recall_fscore_support(
        labels, answers.classes, labels=every, zero_division=0.0
    )
    assert ours.confusion == confusion_matrix(labels, answers.classes, labels=every).tolist()
    assert [c.support for c in ours.classes] == support.tolist()
    found = [[getattr(c, name) for c in ours.classes] for name in RATES]
    np.testing.assert_allclose(found, rates, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        [ours.metrics[name] for name in MEANS],
        compute_rates(labels, answers.classes, "macro"),
        rtol=0,
        atol=1e-12,
    )
    assert ours.metrics["accuracy"] == pytest.approx((labels == answers.classes).mean(), abs=1e-15)
    assert ours.metrics["worst_class_recall"] == rates[1][present].min()


def test_a_class_without_test_examples_is_no_part_of_any_mean():
    labels, classes = np.array([0, 0, 1, 1]), np.array([0, 0, 1, 2])
    ours = evaluate_counts(labels, make_answers(labels, classes), ["a", "b", "never seen"])
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


def test_the_answers_of_two_models_are_counted():
    labels = np.zeros(22, int)
    counts = (5, 9, 5, 3)
    challenger, champion = (np.repeat(each, counts) for each in ((0, 0, 1, 1), (0, 1, 0, 1)))
    assert compare_answers(labels, challenger, champion) == {
        "both_right": 5,
        "only_challenger_right": 9,
        "only_champion_right": 5,
        "both_wrong": 3,
    }


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
    for k in range(1, num_classes):
        theirs = top_k_accuracy_score(
            labels, scores if num_classes > 2 else scores[:, 1], k=k, labels=range(num_classes)
        )
        ours = find_in_top_k(scores, labels, k).mean()
        assert num_classes == 2 or ours == pytest.approx(theirs, abs=1e-15)
    assert find_in_top_k(scores, labels, num_classes).all()


@pytest.mark.parametrize("kind, seed, num_examples, num_classes", SETS)
def test_areas_and_curves_leave_out_what_has_no_meaning(kind, seed, num_examples, num_classes):
    scores, labels = make_scores(kind, seed, num_examples, num_classes)
    names = [str(c) for c in range(num_classes)]
    answer = ModelPredictions(
        scores.argmax(axis=1),
        find_in_top_k(scores, labels, 2),
        scores.max(axis=1).astype(float),
        scores.T,
    )
    evaluation, curves = evaluate_model(labels, answer, names)
    areas = [
        roc_auc_score(labels == c, scores[:, c]) if 0 < (labels == c).sum() < num_examples else None
        for c in range(num_classes)
    ]
    assert [each.roc_auc for each in evaluation.classes] == areas
    known = [area for area in areas if area is not None]
    assert evaluation.metrics.get("macro_roc_auc") == (
        pytest.approx(np.mean(known), abs=1e-12) if known else None
    )
    for index, figures in enumerate(evaluation.classes):
        has_examples = index in labels
        assert (figures.average_precision is not None) == has_examples == (str(index) in curves)
        if not has_examples:
            continue
        precision, recall, _ = precision_recall_curve(labels == index, scores[:, index])
        best = [precision[recall >= each - 1e-12].max() for each in RECALL_THRESHOLDS]
        # At recall 0 scikit-learn adds a point of precision 1 that no threshold gives.
        np.testing.assert_allclose(curves[str(index)][1:], best[1:], rtol=0, atol=1e-12)


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


@pytest.mark.parametrize(
    "labels, num_classes, top_k, expected",
    [
        (  # Class d has no test image, so no mean includes it.
            [0, 1, 1, 1, 1, 1, 2, 2],
            4,
            2,
            {
                "accuracy": 5 / 8,
                "macro_precision": 5 / 8 / 3,
                "macro_recall": 1 / 3,
                "macro_f1": 10 / 13 / 3,
                "worst_class_recall": 0.0,
                "top_k_accuracy": 7 / 8,
                "macro_roc_auc": 0.5,
                "macro_average_precision": 1 / 3,
                "calibration_error": 0.0,
            },
        ),
        (  # A single class is perfect and has no ROC curve.
            [1, 1, 1],
            2,
            1,
            {
                **dict.fromkeys(("accuracy", *MEANS, "worst_class_recall", "top_k_accuracy"), 1.0),
                "macro_average_precision": 1.0,
                "calibration_error": 0.0,
            },
        ),
    ],
)
def test_the_baseline_of_a_classifier_is_its_most_frequent_class(
    labels, num_classes, top_k, expected
):
    truth = np.array(labels)
    answers = answer_class_shares(truth, num_classes, top_k)
    found, _ = evaluate_model(truth, answers, [*"abcd"][:num_classes])
    assert found.metrics == pytest.approx(expected)


def draw_one_by_one(
    labels: np.ndarray, model: ModelPredictions, samples: int
) -> dict[str, np.ndarray]:
    """The plain bootstrap, by scikit-learn."""
    generator, found = np.random.default_rng(5), []
    for _ in range(samples):
        index = generator.integers(0, len(labels), len(labels))
        truth, predicted = labels[index], model.classes[index]
        found.append(
            [
                (truth == predicted).mean(),
                model.is_in_top_k[index].mean(),
                *compute_rates(truth, predicted, "macro"),
                compute_rates(truth, predicted)[1].min(),
            ]
        )
    names = ("accuracy", "top_k_accuracy", *MEANS, "worst_class_recall")
    return dict(zip(names, np.array(found).T, strict=True))


def test_draws_of_cells_spread_as_draws_of_examples_do():
    labels, model = make_random_answers(1, 200, 4, 0.4)
    [ours] = draw_samples(labels, [model], 4, 4000, seed=1)
    for name, values in draw_one_by_one(labels, model, 500).items():
        assert ours[name].mean() == pytest.approx(
            values.mean(), abs=5 * values.std() / np.sqrt(1000)
        ), name
        assert ours[name].std() == pytest.approx(values.std(), rel=0.12), name


def test_a_draw_is_what_scikit_learn_says_of_the_same_examples():
    labels, model = make_random_answers(2, 60, 5, 0.5)
    columns = np.stack([labels, model.classes, model.is_in_top_k])
    cells, counts = np.unique(columns, axis=1, return_counts=True)
    [drawn] = draw_samples(labels, [model], 5, 100, seed=3)
    weights = np.random.default_rng(3).multinomial(60, counts / 60, size=100)
    for row in (0, 50, 99):
        truth, predicted = (np.repeat(cells[line], weights[row]) for line in (0, 1))
        every = precision_recall_fscore_support(
            truth, predicted, labels=range(5), zero_division=0.0
        )[:3]
        found = [drawn[name][row] for name in RATES]
        np.testing.assert_allclose(found, every, rtol=0, atol=1e-12)
        means = [drawn[name][row] for name in MEANS]
        expected = compute_rates(truth, predicted, "macro")
        np.testing.assert_allclose(means, expected, rtol=0, atol=1e-12)


def test_the_same_seed_gives_the_same_draws_however_they_are_cut_into_blocks(monkeypatch):
    labels, model = make_random_answers(3, 100, 3, 0.3)
    [whole] = draw_samples(labels, [model], 3, 300, seed=7)
    monkeypatch.setattr(metrics, "_MAX_BLOCK_VALUES", 40)
    [cut] = draw_samples(labels, [model], 3, 300, seed=7)
    assert all((whole[name] == cut[name]).all() for name in whole)
    [other] = draw_samples(labels, [model], 3, 300, seed=8)
    assert (whole["accuracy"] != other["accuracy"]).any()


def test_both_models_see_the_same_draws_so_that_equal_models_never_differ():
    labels, model = make_random_answers(4, 100, 3, 0.3)
    first, second = draw_samples(labels, [model, model], 3, 300, seed=1)
    assert all((first[name] == second[name]).all() for name in first)


def test_the_interval_of_a_difference_holds_the_truth_as_often_as_it_says():
    """The true accuracies of the two models are 0.8 and 0.7;
    both fail on the same hard examples."""
    generator, held = np.random.default_rng(9), 0
    labels = np.zeros(150, int)
    for repeat in range(200):
        ease = generator.random(150)
        models = [make_answers(labels, (ease > share).astype(int)) for share in (0.8, 0.7)]
        first, second = draw_samples(labels, models, 2, 300, seed=repeat)
        low, high = compute_interval_95(first["accuracy"] - second["accuracy"])
        held += low <= 0.1 <= high
    assert 0.88 <= held / 200 <= 0.99


def test_a_class_that_is_not_drawn_is_no_part_of_a_mean():
    labels, classes = np.array([0] * 50 + [1]), np.array([0] * 50 + [0])
    [drawn] = draw_samples(labels, [make_answers(labels, classes)], 3, 500, seed=1)
    assert set(np.round(np.unique(drawn["macro_recall"]), 6)) == {0.5, 1.0}
    assert np.isfinite(drawn["worst_class_recall"]).all()
