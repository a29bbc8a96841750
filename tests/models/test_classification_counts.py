"""The figures of a classifier on the validation split: counts that add up, as in the evaluation."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline_ops.evaluation.metrics import ModelPredictions, evaluate_counts, find_in_top_k

FIGURES = ("macro_precision", "macro_recall", "macro_f1", "worst_class_recall")


def count(labels: np.ndarray, logits: np.ndarray, num_classes: int, figures, batch: int = 7):
    """Returns the figures of all batches together."""
    import tensorflow as tf

    from pipeline_ops.models.classification import Classification
    from pipeline_ops.models.task import add_sums, compute_figures, zero_sums

    task = Classification((4, 4, 1), gate_metrics=figures, num_classes=num_classes)
    sums = zero_sums(task, training=False)
    for start in range(0, len(labels), batch):
        part = slice(start, start + batch)
        outputs = tf.constant(logits[part]), tf.constant(labels[part])
        sums = add_sums(sums, task.compute_batch_sums(*outputs, training=False))
    return compute_figures(task, sums)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("num_classes", [2, 5, 40])
def test_counts_of_batches_give_the_figures_of_the_evaluation(num_classes, ties):
    """Some of 40 classes have no example, and some no answer."""
    generator = np.random.default_rng(num_classes)
    labels = generator.integers(0, num_classes, 60)
    logits = generator.normal(size=(60, num_classes)).astype(np.float32)
    logits[np.arange(60), labels] += 1.0
    if ties:
        logits = np.round(logits)
    found = count(labels, logits, num_classes, (*FIGURES, "top_1_accuracy", "top_3_accuracy"))
    names = [str(index) for index in range(num_classes)]
    for k in (1, 3):
        answers = ModelPredictions(
            logits.argmax(axis=1), find_in_top_k(logits, labels, k), np.empty(0), np.empty((0, 0))
        )
        expected = evaluate_counts(labels, answers, names).metrics
        assert found[f"top_{k}_accuracy"] == pytest.approx(expected["top_k_accuracy"], abs=1e-12)
    assert [found[name] for name in FIGURES] == pytest.approx(
        [expected[name] for name in FIGURES], abs=1e-12
    )
    assert found["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-6)


def test_only_the_figures_that_are_monitored_are_computed():
    labels, logits = np.zeros(3, int), np.ones((3, 2), np.float32)
    assert set(count(labels, logits, 2, ())) == {"loss", "accuracy"}
    assert set(count(labels, logits, 2, ("macro_f1",))) == {"loss", "accuracy", "macro_f1"}


def test_a_training_counts_nothing_for_them():
    from pipeline_ops.models.classification import Classification
    from pipeline_ops.models.task import zero_sums

    task = Classification((4, 4, 1), gate_metrics=FIGURES, num_classes=9)
    assert zero_sums(task, training=True).metrics.shape == (1,)
