"""A loss and metrics as a user of Trainyard writes them: they map labels [b] and logits [b,
classes] to a value for each example."""

from __future__ import annotations

import tensorflow as tf


def focal_loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Computes a cross-entropy that gives easy examples less weight."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.square(1 - tf.exp(-losses)) * losses


def top3(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns 1 where the right class is among the first three."""
    return tf.cast(tf.math.in_top_k(labels, logits, 3), tf.float32)


def brier(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Computes the squared distance of the probabilities from certainty."""
    return tf.reduce_sum(
        tf.square(tf.nn.softmax(logits) - tf.one_hot(labels, logits.shape[-1])), axis=-1
    )


def brier_of_answers(labels: tf.Tensor, answers: tf.Tensor) -> tf.Tensor:
    """Computes the same of a model that returns probabilities."""
    return tf.reduce_sum(tf.square(answers - tf.one_hot(labels, answers.shape[-1])), axis=-1)


def mean_loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Makes the usual mistake of a mean over the batch."""
    return tf.reduce_mean(focal_loss(labels, logits))


def first_example(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Makes the mistake of a value for one example alone."""
    return focal_loss(labels, logits)[:1]


def undefined(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns no number."""
    return tf.math.log(focal_loss(labels, logits) - 1e3)
