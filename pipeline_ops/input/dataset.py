"""Batches of tensors from a data set's shards, in an order that depends only on seed and step.

Every epoch is a permutation of the whole split, and the epochs follow one another without a gap. A
batch may hold the end of one epoch and the beginning of the next, so every example comes exactly
once in an epoch with any global batch, and all batches have the same size. The examples of a step
follow from arithmetic. Therefore a worker reads only its own slice of each global batch, the global
batches are the same sets for any number of workers, and a gang of any size resumes at any step
without reading earlier examples. The task (`models/task.py`) defines the contents of an example.

Legend: B global batch, b this worker's part of it.
"""

from __future__ import annotations

from typing import Any

from pipeline_ops.input.augment import Changes
from pipeline_ops.input.records import read_records
from pipeline_ops.input.sources import EncodedSource, ExampleSource, Parse
from pipeline_ops.input.split import BatchSlice, SplitShards
from pipeline_ops.input.stateless_random import StatelessRandom
from pipeline_ops.input.tensorflow_start import import_tensorflow

tf = import_tensorflow()

_FOREVER = 1 << 40
_CIPHER = 498_247_692, 4
"""The first word of the key and the number of rounds of the permuting cipher, as in
`tf.random.experimental.index_shuffle`.
"""


def training_batches(
    split: SplitShards,
    source: ExampleSource,
    global_batch: int,
    part: BatchSlice,
    seed: int,
    start_step: int,
    changes: Changes | None = None,
) -> tf.data.Dataset:
    """Returns endless batches from `start_step` on: this worker's part of each.

    The task's `parse` makes their tensors.

    Args:
      split: gives the number of examples.
      source: loads the examples.
      part: this worker's part of each global batch.
      changes: the random changes of the examples. None leaves them as they are.
    """

    def load(step: tf.Tensor) -> tuple[Any, Any]:
        epochs_b, examples_b = _order(
            split, seed, step * global_batch + tf.range(part.start, part.end, dtype=tf.int64)
        )
        return (
            changes.load(source.load, StatelessRandom(seed, epochs_b, examples_b))
            if changes
            else source.load(examples_b)
        )

    return (
        tf.data.Dataset.range(start_step, _FOREVER)
        .map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .prefetch(2)
    )


def examples_of_step(
    split: SplitShards,
    global_batch: int,
    seed: int,
    step: int,
    source: EncodedSource,
    changes: Changes | None = None,
) -> list[bytes]:
    """Returns the whole global batch of one step, as it lies in the shards.

    The batch consists of serialised tf.train.Examples, in the order of the batch. The three other
    examples of a mosaic follow its own example.
    """
    epochs_B, examples_B = _order(
        split,
        seed,
        tf.constant(step * global_batch, tf.int64) + tf.range(global_batch, dtype=tf.int64),
    )
    return (
        source.read(
            changes.examples(StatelessRandom(seed, epochs_B, examples_B)) if changes else examples_B
        )
        .numpy()
        .tolist()
    )


def evaluation_batches(
    split: SplitShards, parse: Parse, batch: int, worker: int = 0, workers: int = 1
) -> tf.data.Dataset:
    """Returns every `workers`-th example once, beginning with number `worker`.

    The last batch may be smaller.
    """
    return (
        read_records(split.paths, split.removed)
        .shard(workers, worker)
        .batch(batch)
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .prefetch(2)
    )


def _order(split: SplitShards, seed: int, positions_b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (epochs_b, examples_b) of positions in the endless order.

    Each epoch has a different permutation. A cipher with (seed, epoch) as its key maps a position
    within an epoch to an example. No permutation is ever built as a whole, so the first step of the
    hundredth epoch costs as much as any other.
    """
    epochs_b, within_b = positions_b // split.num_examples, positions_b % split.num_examples
    word, rounds = _CIPHER
    keys_b3 = tf.stack(
        [tf.fill(tf.shape(epochs_b), tf.constant(part, tf.int64)) for part in (word, seed)]
        + [epochs_b],
        axis=1,
    )
    last = tf.constant(split.num_examples - 1, tf.int64)
    return epochs_b, tf.raw_ops.RandomIndexShuffle(
        index=within_b, seed=keys_b3, max_index=last, rounds=rounds
    )
