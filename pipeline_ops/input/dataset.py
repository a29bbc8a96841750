"""A data set's shards as batches of tensors, in an order that depends on the seed and the step alone.

Every epoch is a permutation of the whole split, and the epochs follow one another without a gap: a batch may hold the
end of one and the beginning of the next, so every example comes exactly once in an epoch whatever the global batch, and
all batches have the same size. Which examples a step has is arithmetic. So a worker reads nothing but its own slice of
each global batch, the global batches are the same sets whatever the number of workers, and a gang of any size resumes
at any step without reading what came before. What is in an example is the task's matter (`models/task.py`).

Legend: B global batch, b this worker's part of it.
"""

from __future__ import annotations

from typing import Any

from pipeline_ops.input.augment import Changes
from pipeline_ops.input.records import read_records
from pipeline_ops.input.sources import EncodedSource, Parse, Source
from pipeline_ops.input.split import Slice, Split
from pipeline_ops.input.stateless_random import Draws
from pipeline_ops.input.tensorflow_start import import_tensorflow

tf = import_tensorflow()

_FOREVER = 1 << 40
_CIPHER = 498_247_692, 4
"""The first word of the key, and the rounds, of the cipher that permutes: what `tf.random.experimental.index_shuffle` takes."""


def training_batches(split: Split, source: Source, global_batch: int, part: Slice, seed: int, start_step: int,
                     changes: Changes | None = None) -> tf.data.Dataset:
    """Endless batches from `start_step` on: this worker's part of each, as the task's `parse` makes it.

    Args:
      split: says how many examples there are.
      source: has them.
      changes: what is done to them at random; None for nothing.
    """
    def load(step: tf.Tensor) -> tuple[Any, Any]:
        epochs_b, examples_b = _order(split, seed, step * global_batch + tf.range(part.start, part.end, dtype=tf.int64))
        return changes.load(source.load, Draws(seed, epochs_b, examples_b)) if changes else source.load(examples_b)

    return tf.data.Dataset.range(start_step, _FOREVER).map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(2)


def examples_of_step(split: Split, global_batch: int, seed: int, step: int, source: EncodedSource, changes: Changes | None = None) -> list[bytes]:
    """The whole global batch of one step, as it lies in the shards: serialised tf.train.Examples, in the order of the batch. A mosaic's own
    example is followed by the three others."""
    epochs_B, examples_B = _order(split, seed, tf.constant(step * global_batch, tf.int64) + tf.range(global_batch, dtype=tf.int64))
    return source.read(changes.examples(Draws(seed, epochs_B, examples_B)) if changes else examples_B).numpy().tolist()


def evaluation_batches(split: Split, parse: Parse, batch: int, worker: int = 0, workers: int = 1) -> tf.data.Dataset:
    """Every `workers`-th example once, beginning with number `worker`; the last batch may be smaller."""
    return (read_records(split.paths, split.removed).shard(workers, worker).batch(batch)
            .map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            .prefetch(2))


def _order(split: Split, seed: int, positions_b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """(epochs_b, examples_b) of positions in the endless order: in each epoch another permutation.

    A cipher with (seed, epoch) as its key maps a position within an epoch to an example, so no permutation is ever made
    as a whole: the first step of the hundredth epoch costs as much as any other.
    """
    epochs_b, within_b = positions_b // split.num_examples, positions_b % split.num_examples
    word, rounds = _CIPHER
    keys_b3 = tf.stack([tf.fill(tf.shape(epochs_b), tf.constant(part, tf.int64)) for part in (word, seed)] + [epochs_b], axis=1)
    last = tf.constant(split.num_examples - 1, tf.int64)
    return epochs_b, tf.raw_ops.RandomIndexShuffle(index=within_b, seed=keys_b3, max_index=last, rounds=rounds)
