"""A data set's shards as batches of tensors, in an order that depends on the seed and the step alone.

Every worker reads the same order and takes its own slice of each global batch, so the global batches are the same sets
whatever the number of workers, and a gang of any size resumes in the middle of an epoch by its step number. What a
worker does not need is dropped while it is still bytes: decoding costs ten to thirty times more than reading. What is in
an example is the task's matter (`models/task.py`).

Legend: B global batch, b this worker's part of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from pipeline_ops.input.records import read_records, shard_reader
from pipeline_ops.input.tensorflow_start import import_tensorflow

tf = import_tensorflow()

Parse = Callable[[Any], tuple[Any, Any]]
"""Serialised examples, string [b], to features and labels."""

MAX_BYTES_IN_MEMORY = 256 << 20
"""A split up to this size is held in memory, and every epoch is a full permutation of it."""

_SHUFFLE_EXAMPLES = 16_384
"""The window of the shuffle for larger splits; the shards themselves are globally shuffled already."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """Which part of each global batch is this worker's: `[start, end)`."""

    start: int
    end: int

    @classmethod
    def of(cls, worker: int, workers: int, global_batch: int) -> Slice:
        return cls(worker * global_batch // workers, (worker + 1) * global_batch // workers)


@dataclasses.dataclass(frozen=True)
class Split:
    """The shards of one split, as the manifest lists them."""

    paths: tuple[str, ...]
    num_examples: int
    num_bytes: int
    removed: tuple[tuple[int, ...], ...] = ()
    """For each shard the positions of records that don't count; `num_examples` is without them. Empty: none anywhere."""

    def steps_per_epoch(self, global_batch: int) -> int:
        """Whole batches; the examples of the last, partial one come first in another epoch's order."""
        return self.num_examples // global_batch

    @property
    def is_small(self) -> bool:
        return self.num_bytes <= MAX_BYTES_IN_MEMORY


def training_batches(split: Split, parse: Parse, global_batch: int, part: Slice, seed: int, start_step: int) -> tf.data.Dataset:
    """Endless batches from `start_step` on: this worker's part of each, as `parse` makes it."""
    steps = split.steps_per_epoch(global_batch)
    first_epoch, first_step = divmod(start_step, steps)
    records = _epochs_in_memory if split.is_small else _epochs_streamed
    serialized = records(split, global_batch, steps, seed, first_epoch).skip(first_step)
    return (serialized.map(lambda batch_B: batch_B[part.start:part.end])
            .map(parse, num_parallel_calls=2, deterministic=True)
            .prefetch(2))


def evaluation_batches(split: Split, parse: Parse, batch: int, worker: int = 0, workers: int = 1) -> tf.data.Dataset:
    """Every `workers`-th example once, beginning with number `worker`; the last batch may be smaller."""
    return (read_records(split.paths, split.removed).shard(workers, worker).batch(batch)
            .map(parse, num_parallel_calls=2, deterministic=True)
            .prefetch(2))


def _epochs_in_memory(split: Split, global_batch: int, steps: int, seed: int, first_epoch: int) -> tf.data.Dataset:
    """Batches of serialised examples: each epoch is a permutation of the whole split."""
    all_records = tf.constant(list(read_records(split.paths, split.removed).as_numpy_iterator()))

    def epoch(number):
        order = tf.random.experimental.stateless_shuffle(tf.range(split.num_examples), seed=[seed, number])
        return tf.data.Dataset.from_tensor_slices(tf.reshape(order[: steps * global_batch], [steps, global_batch]))

    return tf.data.Dataset.range(first_epoch, _FOREVER).flat_map(epoch).map(lambda indexes_B: tf.gather(all_records, indexes_B))


def _epochs_streamed(split: Split, global_batch: int, steps: int, seed: int, first_epoch: int) -> tf.data.Dataset:
    """Batches of serialised examples: each epoch reads the shards in another order through a shuffle window."""
    read = shard_reader(split.paths, split.removed)

    def epoch(number):
        order = tf.random.experimental.stateless_shuffle(tf.range(len(split.paths)), seed=[seed, number])
        return (tf.data.Dataset.from_tensor_slices(order)
                .interleave(read, cycle_length=4, num_parallel_calls=2, deterministic=True)
                .shuffle(_SHUFFLE_EXAMPLES, seed=seed * 1_000_003 + number, reshuffle_each_iteration=False)
                .batch(global_batch, drop_remainder=True).take(steps))

    return tf.data.Dataset.range(first_epoch, _FOREVER).flat_map(epoch)


_FOREVER = 1 << 31
