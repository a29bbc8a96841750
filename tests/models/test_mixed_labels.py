"""The loss of two labels with shares is Keras's cross-entropy of soft labels."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline_ops.input.augment import MixedLabels
from pipeline_ops.models.classification import Classification

CLASSES, COUNT = 7, 50


@pytest.fixture(scope="module")
def batch():
    draw = np.random.default_rng(3)
    labels = MixedLabels(
        tf.constant(draw.integers(0, CLASSES, COUNT)),
        tf.constant(draw.integers(0, CLASSES, COUNT)),
        tf.constant(draw.beta(0.4, 0.4, COUNT), tf.float32),
    )
    soft = labels.share[:, None] * tf.one_hot(labels.first, CLASSES)
    soft += (1 - labels.share[:, None]) * tf.one_hot(labels.second, CLASSES)
    return tf.constant(draw.normal(0, 3, (COUNT, CLASSES)), tf.float32), labels, soft


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_gradient_and_accuracy_are_those_of_soft_labels(batch, smoothing):
    logits, labels, soft = batch
    loss = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=smoothing, reduction="sum"
    )
    task = Classification((8, 8, 1), label_smoothing=smoothing)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        sums, expected = task.compute_batch_sums(logits, labels, training=True), loss(soft, logits)
    assert float(sums.loss) == pytest.approx(float(expected), rel=1e-6)
    assert tape.gradient(sums.loss, logits).numpy() == pytest.approx(
        tape.gradient(expected, logits).numpy(), abs=1e-6
    )
    hits = tf.gather(soft, tf.argmax(logits, -1), batch_dims=1)
    assert sums.metrics.numpy() == pytest.approx([float(tf.reduce_sum(hits))], rel=1e-6)
    assert float(sums.count) == COUNT


def test_class_weights_weigh_each_label(batch):
    logits, labels, soft = batch
    weights = [0.5 + n for n in range(CLASSES)]
    task = Classification((8, 8, 1), class_weights=weights)
    expected = -tf.reduce_sum(soft * tf.constant(weights) * tf.nn.log_softmax(logits))
    found = task.compute_batch_sums(logits, labels, training=True)
    assert float(found.loss) == pytest.approx(float(expected), rel=1e-6)


def test_own_losses_and_metrics_are_called_with_each_label(batch):
    logits, labels, soft = batch

    def squared(labels, logits):
        return tf.reduce_sum((tf.one_hot(labels, CLASSES) - tf.nn.softmax(logits)) ** 2, -1)

    task = Classification((8, 8, 1), loss=squared, metrics={"squared": squared})
    found = task.compute_batch_sums(logits, labels, training=True)
    expected = tf.reduce_sum(
        labels.share * squared(labels.first, logits)
        + (1 - labels.share) * squared(labels.second, logits)
    )
    assert float(found.loss) == pytest.approx(float(expected), rel=1e-6)
    assert float(found.metrics[1]) == pytest.approx(float(expected), rel=1e-6)


def test_one_label_alone_is_as_without_a_mixture(batch):
    logits, labels, _ = batch
    whole = MixedLabels(labels.first, labels.second, tf.ones([COUNT]))
    task = Classification((8, 8, 1), label_smoothing=0.1)
    for one, other in zip(
        task.compute_batch_sums(logits, whole, training=True),
        task.compute_batch_sums(logits, labels.first, training=True),
        strict=True,
    ):
        assert (one.numpy() == other.numpy()).all()
