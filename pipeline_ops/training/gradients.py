"""Micro-batches: parts of a batch, and the sums of their metrics and gradients, for all loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from pipeline_ops.models.task import BatchSums, add_sums

Differentiate = Callable[[int | tf.Tensor, Any, Any], tuple[BatchSums, list[tf.Tensor]]]
"""Maps the number of a micro-batch, its features and its labels to sums and gradients."""


def cast_to_float(features: Any) -> Any:
    """Casts images, which travel as bytes, to the floats that a model takes."""
    return tf.nest.map_structure(
        lambda values: tf.cast(values, tf.float32) if values.dtype.is_integer else values, features
    )


def slice_batch(batch: Any, number: int | tf.Tensor, count: int) -> Any:
    """Returns the given one of `count` parts of every tensor, along its first axis.

    The sizes of the parts differ by one example at most.
    """
    return (
        batch
        if count == 1
        else tf.nest.map_structure(lambda values: _slice_tensor(values, number, count), batch)
    )


def _slice_tensor(values: tf.Tensor, number: int | tf.Tensor, count: int) -> tf.Tensor:
    size = values.shape[0] or tf.shape(values)[0]
    if values.shape[0] and size % count == 0:
        # XLA has no tensors whose size is known only in the loop.
        rank = len(values.shape)
        start = tf.concat([[number * (size // count)], tf.zeros([rank - 1], tf.int32)], 0)
        return tf.slice(values, start, [size // count, *[-1] * (rank - 1)])
    return values[number * size // count : (number + 1) * size // count]


def accumulate_gradients(
    count: int,
    differentiate: Differentiate,
    features: Any,
    labels: Any,
    shapes: Sequence[tf.TensorShape],
    no_sums: BatchSums,
) -> tuple[BatchSums, list[tf.Tensor]]:
    """Applies `differentiate` part by part, so that each part reuses the memory of the last.

    Args:
      count: The number of parts.
      shapes: The shapes of the gradients.
      no_sums: Zeros.
    """
    if count == 1:
        return differentiate(0, features, labels)

    def add_next(number: tf.Tensor, sums: BatchSums, gradients: list[tf.Tensor]) -> Any:
        more, new = differentiate(number, *slice_batch((features, labels), number, count))
        added = [a + b for a, b in zip(gradients, new, strict=True)]
        return number + 1, add_sums(sums, more), added

    initial = (tf.constant(0), no_sums, [tf.zeros(shape) for shape in shapes])
    _, sums, gradients = tf.while_loop(
        lambda number, *_: number < count, add_next, initial, parallel_iterations=1
    )
    return sums, gradients
