"""What a model is trained for: how examples are read, and what a batch contributes to the loss and to the metrics.

A task is one class in a file of its own (`classification.py`). The loops know no more of it than this, so whatever can
be said in sums over examples trains under every strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf


class Task(Protocol):
    """One kind of model.

    `metrics` names the figures beside the loss, in the order of `batch_sums`.
    """

    metrics: tuple[str, ...]
    counts_examples: bool
    """Whether the last of the sums is the number of examples, which is known before a step: the global batch. If not, the gradient is divided
    by it once all replicas have counted."""
    evaluation_batch: int
    """Examples that are evaluated at once."""

    def parse(self, serialized_b: tf.Tensor) -> tuple[Any, Any]:
        """A batch of serialised examples as (features, labels): tensors, or structures of tensors, with the batch as first axis."""
        ...

    def batch_sums(self, outputs: Any, labels: Any, training: bool) -> tf.Tensor:
        """float32 [2 + metrics]: the sum of the losses, the sum of each metric, and the number of examples, or of what else they are means of.

        Sums, not means: they add up over replicas, workers and batches of different sizes, and are divided once. What
        only shapes the gradient (weights of classes, smoothed labels) counts where `training` is true.
        """
        ...


def means(task: Task, sums: Sequence[float]) -> dict[str, float]:
    """`loss` and the task's metrics, of sums as `batch_sums` makes them."""
    *totals, count = map(float, sums)
    return {name: total / max(count, 1.0) for name, total in zip(("loss", *task.metrics), totals, strict=True)}


def num_sums(task: Task) -> int:
    return 2 + len(task.metrics)
