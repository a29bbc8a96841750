"""What all loops do with a batch: cut it into parts, and add up the sums and the gradients of its micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Differentiate = Callable[[int | tf.Tensor, Any, Any], tuple[tf.Tensor, list[tf.Tensor]]]
"""The number of a micro-batch, its features and its labels to the sums of `Task.batch_sums` and the gradients."""


def as_floats(features: Any) -> Any:
    """What a model is given: images travel as bytes."""
    return tf.nest.map_structure(lambda values: tf.cast(values, tf.float32) if values.dtype.is_integer else values, features)


def part_of(batch: Any, number: int | tf.Tensor, count: int) -> Any:
    """The given one of `count` parts of every tensor along its first axis; equal up to one example."""
    return batch if count == 1 else tf.nest.map_structure(lambda values: _part(values, number, count), batch)


def _part(values: tf.Tensor, number: int | tf.Tensor, count: int) -> tf.Tensor:
    size = values.shape[0] or tf.shape(values)[0]
    part = values[number * size // count:(number + 1) * size // count]
    if values.shape[0] and values.shape[0] % count == 0:
        part.set_shape([values.shape[0] // count, *values.shape[1:]])
    return part


def in_micro_batches(count: int, differentiate: Differentiate, features: Any, labels: Any, shapes: Sequence[tf.TensorShape],
                     num_sums: int) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """As `differentiate` on the whole batch, but part after part, so that one's memory is free for the next.

    Args:
      count: the number of parts.
      shapes: of the gradients.
      num_sums: the length of the sums.
    """
    if count == 1:
        return differentiate(0, features, labels)

    def add_next(number: tf.Tensor, sums: tf.Tensor, *gradients: tf.Tensor) -> tuple[tf.Tensor, ...]:
        more, new = differentiate(number, *part_of((features, labels), number, count))
        return number + 1, sums + more, *(a + b for a, b in zip(gradients, new, strict=True))

    nothing = (tf.constant(0), tf.zeros([num_sums]), *(tf.zeros(shape) for shape in shapes))
    _, sums, *gradients = tf.while_loop(lambda number, *_: number < count, add_next, nothing, parallel_iterations=1)
    return sums, gradients
