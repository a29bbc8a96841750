"""The task of a model: parses examples, and computes a batch's share of the loss and the metrics.

The training loops use only this interface, so any objective that is a sum over examples trains
under every strategy.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf


class BatchSums(NamedTuple):
    """The sums over a batch, as tensors or as arrays.

    Unlike means, they add up over replicas, workers and batches of different sizes. They are
    divided by `count` once.

    Attributes:
      loss: float32 [], the sum of the losses.
      metrics: float32 [M], the sum of each metric, in the order of `Task.metrics`. The sums of an
        evaluation end with the `num_counts` counts of the task, and with the number of examples
        whose answer is not finite.
      count: float32 [], the number of examples, or of other items over which means are taken.
    """

    loss: Any
    metrics: Any
    count: Any


def zero_sums(task: Task, training: bool) -> BatchSums:
    size = len(task.metrics) if training else len(task.validation_metrics) + task.num_counts + 1
    return BatchSums(tf.zeros([]), tf.zeros([size]), tf.zeros([]))


def add_sums(first: BatchSums, second: BatchSums) -> BatchSums:
    return BatchSums(*map(operator.add, first, second))


class Task(Protocol):
    """One kind of model. `metrics` are the names of the sums of a step besides the loss."""

    metrics: tuple[str, ...]
    validation_metrics: tuple[str, ...]
    """The names of the sums of an evaluation, which differ if the author's code computes both."""
    num_counts: int
    """The number of counts of an evaluation, from which `compute_from_counts` computes figures that
    are not means over a batch.
    """
    counts_examples: bool
    """True if `BatchSums.count` is the number of examples, which is known before a step. Otherwise
    the gradient is divided by the count after all replicas have counted.
    """
    evaluation_batch_size: int
    """The number of examples that are evaluated at once."""

    def parse(self, serialized_b: tf.Tensor) -> tuple[Any, Any]:
        """Parses a batch of serialised examples into (features, labels).

        Both are tensors, or structures of tensors, with the batch as first axis.
        """
        ...

    def list_classes(self, labels: Any) -> tf.Tensor:
        """Returns the classes of each example, int64 [b, n], -1 where there are fewer than n."""
        ...

    def for_model(self, model: Any) -> Task:
        """Returns the task for a model, with own functions that get its outputs."""
        ...

    def compute_batch_sums(self, outputs: Any, labels: Any, training: bool) -> BatchSums:
        """Returns the sums of a batch.

        Terms that only shape the gradient (class weights, label smoothing) are included if
        `training` is true. Otherwise the sums end with counts, see `BatchSums`.
        """
        ...

    def are_answers_finite(self, outputs: Any) -> tf.Tensor:
        """Returns whether the model's answer to each example is finite, bool [b]."""
        ...

    def compute_from_counts(self, counts: np.ndarray) -> dict[str, float]:
        """Returns the metrics of an evaluation that are computed from the totals of its counts."""
        ...


def compute_means(names: Sequence[str], sums: BatchSums) -> dict[str, float]:
    """Returns `loss` and the metrics of these names."""
    totals = zip(("loss", *names), (sums.loss, *sums.metrics), strict=False)
    return {name: float(total) / max(float(sums.count), 1.0) for name, total in totals}


def compute_figures(task: Task, sums: BatchSums) -> dict[str, float]:
    """Returns the means of an evaluation, and its metrics that are not means."""
    names = task.validation_metrics
    counts = np.asarray(sums.metrics[len(names) : -1])
    return compute_means(names, sums) | task.compute_from_counts(counts)


def count_answers_not_finite(task: Task, sums: BatchSums) -> int:
    """Returns the number of examples of an evaluation whose answer is not finite."""
    return int(sum(sums.metrics[len(task.validation_metrics) :][-1:]))


def judge_examples(task: Task, outputs: Any, labels: Any) -> tf.Tensor:
    """Returns whether the answer to each example and its figures are finite, bool [b, 2].

    The figures are its loss and its metrics.
    """

    def judge(example: Any) -> tf.Tensor:
        one = tf.nest.map_structure(lambda value: value[None], example)
        sums = task.compute_batch_sums(one[0], one[1], training=False)
        return tf.reduce_all(tf.math.is_finite(tf.concat([sums.loss[None], sums.metrics], 0)))

    figures = tf.map_fn(judge, (outputs, labels), fn_output_signature=tf.bool)
    return tf.stack([task.are_answers_finite(outputs), figures], axis=1)


def count_false(values: tf.Tensor) -> tf.Tensor:
    """Returns float32 [1], the number of false values."""
    return tf.reduce_sum(1.0 - tf.cast(values, tf.float32))[None]
