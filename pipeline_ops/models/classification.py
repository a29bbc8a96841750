"""Image classification: what a batch contributes to the loss and to the metrics, as sums.

Sums, not means: they add up over replicas, workers and batches of different sizes, and are divided once, by the number
of examples.
"""

from __future__ import annotations

import tensorflow as tf


def batch_sums(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """float32 [3]: sum of the cross-entropies, number of correct answers, number of examples."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    correct = tf.equal(tf.argmax(logits, axis=-1), labels)
    return tf.stack([tf.reduce_sum(losses), tf.reduce_sum(tf.cast(correct, tf.float32)), tf.cast(tf.size(labels), tf.float32)])


def means(sums) -> dict[str, float]:
    """{"loss", "accuracy"} of sums as `batch_sums` makes them."""
    loss, correct, count = (float(value) for value in sums)
    return {"loss": loss / max(count, 1.0), "accuracy": correct / max(count, 1.0)}
