"""The task of a model: reads examples, and computes a batch's part of the loss and of the metrics.

A task is one class in a file of its own (`classification.py`). The loops use only this interface,
so any objective that is a sum over examples trains under every strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf


class Task(Protocol):
    """One kind of model.

    `metrics` names the figures besides the loss, in the order of `compute_batch_sums`.
    """

    metrics: tuple[str, ...]
    counts_examples: bool
    """True if the last of the sums is the number of examples, which is known before a step: the
    global batch. Otherwise the gradient is divided by this sum after all replicas have counted.
    """
    evaluation_batch_size: int
    """The number of examples that are evaluated at once."""

    def parse(self, serialized_b: tf.Tensor) -> tuple[Any, Any]:
        """Parses a batch of serialised examples into (features, labels).

        Both are tensors, or structures of tensors, with the batch as first axis.
        """
        ...

    def compute_batch_sums(self, outputs: Any, labels: Any, training: bool) -> tf.Tensor:
        """Returns float32 [2 + metrics]: the sum of the losses, the sum of each metric, and a
        count.

        The count is the number of examples, or of the other items over which the means are taken.

        Unlike means, sums add up over replicas, workers and batches of different sizes. They are
        divided once. Terms that only shape the gradient (weights of classes, smoothed labels) count
        where `training` is true.
        """
        ...


def compute_means(task: Task, sums: Sequence[float]) -> dict[str, float]:
    """Returns `loss` and the task's metrics, from the sums of `compute_batch_sums`."""
    *totals, count = map(float, sums)
    return {
        name: total / max(count, 1.0)
        for name, total in zip(("loss", *task.metrics), totals, strict=True)
    }


def count_sums(task: Task) -> int:
    return 2 + len(task.metrics)
