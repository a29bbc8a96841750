"""The intervals: drawn by cells, they are those of examples drawn one by one, and they hold what
they promise."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from pipeline_ops.evaluation import bootstrap
from pipeline_ops.evaluation.bootstrap import TopKPredictions, compute_interval, draw_samples


def make_predictions(
    seed: int, num_examples: int, num_classes: int, noise: float
) -> tuple[np.ndarray, TopKPredictions]:
    generator = np.random.default_rng(seed)
    labels = np.random.default_rng(0).integers(0, num_classes, num_examples)
    classes = np.where(
        generator.random(num_examples) < noise,
        generator.integers(0, num_classes, num_examples),
        labels,
    )
    return labels, TopKPredictions(
        classes, (classes == labels) | (generator.random(num_examples) < 0.3)
    )


def one_by_one(
    labels: np.ndarray, model: TopKPredictions, num_classes: int, samples: int
) -> dict[str, np.ndarray]:
    """The plain bootstrap, by scikit-learn."""
    generator, found = np.random.default_rng(5), []
    for _ in range(samples):
        index = generator.integers(0, len(labels), len(labels))
        truth, predicted = labels[index], model.classes[index]
        present = sorted(set(truth.tolist()))
        means = precision_recall_fscore_support(
            truth, predicted, labels=present, average="macro", zero_division=0.0
        )[:3]
        worst = precision_recall_fscore_support(
            truth, predicted, labels=present, zero_division=0.0
        )[1].min()
        found.append([(truth == predicted).mean(), model.is_in_top_k[index].mean(), *means, worst])
    names = (
        "accuracy",
        "top_k_accuracy",
        "macro_precision",
        "macro_recall",
        "macro_f1",
        "worst_class_recall",
    )
    return dict(zip(names, np.array(found).T, strict=True))


def test_draws_of_cells_spread_as_draws_of_examples_do():
    labels, model = make_predictions(1, 200, 4, 0.4)
    [ours], theirs = (
        draw_samples(labels, [model], 4, 4000, seed=1),
        one_by_one(labels, model, 4, 500),
    )
    for name, values in theirs.items():
        assert ours.metrics[name].mean() == pytest.approx(
            values.mean(), abs=5 * values.std() / np.sqrt(1000)
        ), name
        assert ours.metrics[name].std() == pytest.approx(values.std(), rel=0.12), name


def test_a_draw_is_what_scikit_learn_says_of_the_same_examples(monkeypatch):
    labels, model = make_predictions(2, 60, 5, 0.5)
    columns = np.stack([labels, model.classes, model.is_in_top_k])
    cells, counts = np.unique(columns, axis=1, return_counts=True)
    [drawn] = draw_samples(labels, [model], 5, 100, seed=3)
    weights = np.random.default_rng(3).multinomial(60, counts / 60, size=100)
    for row in (0, 50, 99):
        truth, predicted = (np.repeat(cells[line], weights[row]) for line in (0, 1))
        every = precision_recall_fscore_support(
            truth, predicted, labels=range(5), zero_division=0.0
        )
        np.testing.assert_allclose(
            [drawn.classes[name][row] for name in ("precision", "recall", "f1")],
            every[:3],
            rtol=0,
            atol=1e-12,
        )
        means = precision_recall_fscore_support(
            truth, predicted, labels=sorted(set(truth.tolist())), average="macro", zero_division=0.0
        )[:3]
        np.testing.assert_allclose(
            [drawn.metrics[f"macro_{name}"][row] for name in ("precision", "recall", "f1")],
            means,
            rtol=0,
            atol=1e-12,
        )


def test_the_same_seed_gives_the_same_draws_however_they_are_cut_into_blocks(monkeypatch):
    labels, model = make_predictions(3, 100, 3, 0.3)
    [whole] = draw_samples(labels, [model], 3, 300, seed=7)
    monkeypatch.setattr(bootstrap, "_MAX_BLOCK_VALUES", 40)
    [cut] = draw_samples(labels, [model], 3, 300, seed=7)
    assert all((whole.metrics[name] == cut.metrics[name]).all() for name in whole.metrics)
    assert (
        whole.metrics["accuracy"]
        != draw_samples(labels, [model], 3, 300, seed=8)[0].metrics["accuracy"]
    ).any()


def test_both_models_see_the_same_draws_so_that_equal_models_never_differ():
    labels, model = make_predictions(4, 100, 3, 0.3)
    first, second = draw_samples(labels, [model, model], 3, 300, seed=1)
    assert all((first.metrics[name] == second.metrics[name]).all() for name in first.metrics)


def test_the_interval_of_a_difference_holds_the_truth_as_often_as_it_says():
    """The true accuracies of the two models are 0.8 and 0.7;
    both fail on the same hard examples."""
    generator, held = np.random.default_rng(9), 0
    for repeat in range(200):
        ease = generator.random(150)
        labels = np.zeros(150, int)
        models = [
            TopKPredictions((ease > share).astype(int), ease <= share) for share in (0.8, 0.7)
        ]
        first, second = draw_samples(labels, models, 2, 300, seed=repeat)
        low, high = compute_interval(first.metrics["accuracy"] - second.metrics["accuracy"])
        held += low <= 0.1 <= high
    assert 0.88 <= held / 200 <= 0.99


def test_a_class_that_is_not_drawn_is_no_part_of_a_mean():
    labels, classes = np.array([0] * 50 + [1]), np.array([0] * 50 + [0])
    [drawn] = draw_samples(labels, [TopKPredictions(classes, classes == labels)], 3, 500, seed=1)
    assert set(np.round(np.unique(drawn.metrics["macro_recall"]), 6)) == {0.5, 1.0}
    assert np.isfinite(drawn.metrics["worst_class_recall"]).all()
