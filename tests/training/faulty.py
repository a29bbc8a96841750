"""Code of authors that fails in the middle of a training, after public bug reports.

A comment names the line at which each case fails.
"""

from __future__ import annotations

import logging

import keras
import numpy as np
import tensorflow as tf

_log = logging.getLogger(__name__)


class Lookup(keras.layers.Layer):
    """An embedding whose index grows out of it (tensorflow#54855)."""

    def __init__(self, num_rows):
        super().__init__()
        self.num_rows = num_rows

    def build(self, shape):
        self.table = self.add_weight(shape=(self.num_rows,), initializer="zeros", name="table")
        self.seen = self.add_weight(
            shape=(), initializer="zeros", dtype="int32", trainable=False, name="seen"
        )

    def call(self, inputs, training=False):
        if training:
            self.seen.assign(self.seen + 1)
        return inputs + tf.gather(self.table, self.seen.value)  # at: step 5


def with_lookup(image_shape, num_classes):
    inputs = keras.Input(image_shape)
    hidden = keras.layers.Flatten()(inputs / 16)
    return keras.Model(inputs, keras.layers.Dense(num_classes)(Lookup(5)(hidden)))


class OfFixedBatch(keras.layers.Layer):
    """A layer that knows the size of a training batch, which a validation batch has not."""

    def call(self, inputs, training=False):
        if training:
            return inputs
        return tf.reshape(inputs, [7, inputs.shape[-1]])  # at: validation


def of_fixed_batch(image_shape, num_classes):
    layers = [keras.layers.Flatten(), OfFixedBatch(), keras.layers.Dense(num_classes)]
    return keras.Sequential([keras.Input(image_shape), *layers])


class OwnStep(keras.Model):
    """A training step of the author's own whose gradients become too large."""

    def train_step(self, data):
        images, labels = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=labels, y_pred=self(images, training=True))
        gradients = tape.gradient(loss, self.trainable_weights)
        norm = tf.linalg.global_norm(gradients)
        tf.debugging.assert_less(norm, 1e-9, "exploding gradients")  # at: own step
        self.optimizer.apply(gradients, self.trainable_weights)
        return {"loss": loss}


def with_own_step(image_shape, num_classes):
    inputs = keras.Input(image_shape)
    outputs = keras.layers.Dense(num_classes)(keras.layers.Flatten()(inputs))
    return OwnStep(inputs, outputs)


def _cross_entropy(labels, logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def asserting(labels, logits):
    """A loss with an assertion on data."""
    tf.debugging.assert_less(labels, tf.cast(9, labels.dtype), "a label is too large")  # at: assert
    return _cross_entropy(labels, logits)


def with_python(labels, logits):
    """A loss with code of Python inside, whose KeyError is an UnknownError of TensorFlow."""
    losses = _cross_entropy(labels, logits)
    weights = tf.numpy_function(lambda found: {}["weights"], [losses], tf.float32)  # at: python
    return losses * tf.stop_gradient(tf.reshape(weights, tf.shape(losses)))


def misspelt(labels, logits):
    """A metric with a mistake of Python's, which AutoGraph reports in a text of its own."""
    if tf.reduce_sum(logits) > 0:
        labels = labels + 0
    return tf.cast(labels == tf.argmx(logits, 1), tf.float32)  # at: misspelt


class Reporter(keras.callbacks.Callback):
    """The most common mistake in a callback: the figure has another name (keras#5239)."""

    def on_epoch_end(self, epoch, logs=None):
        self.report(logs)

    def report(self, logs):
        _log.info("%s", logs["val_acc"])  # at: callback


class Plotter(keras.callbacks.Callback):
    def on_test_end(self, logs=None):
        np.reshape(np.zeros(3), (2, 2))  # at: inside of numpy
