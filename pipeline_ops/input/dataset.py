"""Batches of tensors from a data set's shards, in an order that depends only on seed and step.

Every epoch is a permutation of the split (`order.py`), and the epochs follow one another without a
gap. A batch may hold the end of one epoch and the beginning of the next, so every example comes
exactly once in an epoch with any global batch, and all batches have the same size. The examples of
a step follow from arithmetic. Therefore a worker reads only its own slice of each global batch, the
global batches are the same sets for any number of workers, and a gang of any size resumes at any
step without reading earlier examples. The task (`models/task.py`) defines the contents of an
example.

Legend: B global batch, b this worker's part of it.
"""

from __future__ import annotations

from typing import Any

from pipeline_ops.input.augment import Augmentation
from pipeline_ops.input.order import make_order
from pipeline_ops.input.records import Parse
from pipeline_ops.input.sources import EncodedSource, ExampleSource
from pipeline_ops.input.split import BatchSlice, SplitShards
from pipeline_ops.input.stateless_random import StatelessRandom
from pipeline_ops.input.streaming import StreamedSource, read_batches
from pipeline_ops.input.tensorflow_start import tf

_MAX_STEPS = 1 << 40


def build_training_dataset(
    split: SplitShards,
    source: ExampleSource,
    global_batch_size: int,
    batch_slice: BatchSlice,
    seed: int,
    start_step: int,
    augmentation: Augmentation | None = None,
    window: int | None = None,
) -> tf.data.Dataset:
    """Returns endless batches from `start_step` on: this worker's part of each.

    The task's `parse` makes their tensors.

    Args:
      split: gives the number of examples.
      source: loads the examples.
      batch_slice: this worker's part of each global batch.
      augmentation: the random changes of the examples. None leaves them as they are.
      window: the number of shards whose examples are permuted together. None is the whole split.
    """
    order = make_order(split, seed, window)
    slice_b = tf.range(batch_slice.start, batch_slice.end, dtype=tf.int64)

    def draw(step: tf.Tensor) -> StatelessRandom:
        return StatelessRandom(seed, *order.compute(step * global_batch_size + slice_b))

    def load(step: tf.Tensor) -> tuple[Any, Any]:
        rng = draw(step)
        if augmentation is None:
            return source.load(rng.examples_b)
        return augmentation.load(source.load, rng)

    steps = tf.data.Dataset.range(start_step, _MAX_STEPS)
    if isinstance(source, StreamedSource):
        return source.stream(steps, global_batch_size, seed, draw, augmentation).prefetch(2)
    return steps.map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(2)


def read_step_examples(
    split: SplitShards,
    global_batch_size: int,
    seed: int,
    step: int,
    source: EncodedSource | StreamedSource,
    augmentation: Augmentation | None = None,
    window: int | None = None,
) -> list[bytes]:
    """Returns the whole global batch of one step, as it lies in the shards.

    The batch consists of serialised tf.train.Examples, in the order of the batch. The three other
    examples of a mosaic follow its own example.
    """
    epochs_B, examples_B = make_order(split, seed, window).compute(
        tf.constant(step * global_batch_size, tf.int64)
        + tf.range(global_batch_size, dtype=tf.int64)
    )
    if augmentation:
        rng = StatelessRandom(seed, epochs_B, examples_B)
        examples_B = augmentation.get_example_indices(rng)
    return list(source.read(examples_B).numpy())


def build_evaluation_dataset(
    split: SplitShards, parse: Parse, batch: int, worker: int = 0, workers: int = 1
) -> tf.data.Dataset:
    """Returns every `workers`-th example once, beginning with number `worker`.

    The last batch may be smaller.
    """
    return (
        read_batches(split, batch, worker, workers)
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .prefetch(2)
    )
