"""Batches of tensors from a data set's shards, in an order that depends only on seed and step.

Records are read at random places instead of by `interleave`, `shuffle` and `batch`, so that a gang
of any size resumes at any step with exactly the next examples, and reads no earlier ones. A
pipeline of stateful transformations would have to save and restore buffers of every worker. The
field's equivalent is Grain with ArrayRecord.

Every epoch is a permutation of the split (`order.py`), and the epochs follow one another without a
gap. A batch may hold the end of one epoch and the beginning of the next, so every example comes
exactly once in an epoch with any global batch, and all batches have the same size. The examples of
a step follow from arithmetic. Therefore a worker reads only its own slice of each global batch, and
the global batches are the same sets for any number of workers. The task (`models/task.py`) defines
the contents of an example.

Legend: B global batch, b this worker's part of it, k examples that it is made of.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pipeline_ops.config.input import AugmentOptions
from pipeline_ops.input.augment import Augmentation, ImageAugmentation
from pipeline_ops.input.order import StatelessRandom
from pipeline_ops.input.reading import (
    EncodedSource,
    ExampleSource,
    Parse,
    SplitShards,
    StreamedSource,
    make_order,
    map_reads,
    read_parsed_batches,
)
from pipeline_ops.input.tensorflow_start import tf

_MAX_STEPS = 1 << 40
UNCHANGED = ImageAugmentation(AugmentOptions())


@dataclasses.dataclass(frozen=True)
class BatchSlice:
    """This worker's part of each global batch: `[start, end)`."""

    start: int
    end: int

    @classmethod
    def for_worker(cls, worker: int, workers: int, global_batch_size: int) -> BatchSlice:
        return cls(
            worker * global_batch_size // workers, (worker + 1) * global_batch_size // workers
        )


def build_training_dataset(
    split: SplitShards,
    source: ExampleSource,
    global_batch_size: int,
    batch_slice: BatchSlice,
    seed: int,
    start_step: int,
    augmentation: Augmentation = UNCHANGED,
    window: int | None = None,
) -> tf.data.Dataset:
    """Returns endless batches from `start_step` on: this worker's part of each.

    `window` is the number of shards whose examples are permuted together. None is the whole split.
    """
    order = make_order(split, seed, window)
    slice_b = tf.range(batch_slice.start, batch_slice.end, dtype=tf.int64)

    def draw(step: tf.Tensor) -> StatelessRandom:
        return StatelessRandom(seed, *order.compute(step * global_batch_size + slice_b))

    steps = tf.data.Dataset.range(start_step, _MAX_STEPS)
    if not isinstance(source, StreamedSource):
        return steps.map(
            lambda step: augmentation.load(source.load, draw(step)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        ).prefetch(2)

    def fetch(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        rng = draw(step)
        records_k = source.read(augmentation.get_example_indices(rng), step * global_batch_size)
        return rng.epochs_b, rng.examples_b, records_k

    def finish(epochs_b: tf.Tensor, examples_b: tf.Tensor, records_k: tf.Tensor) -> tuple[Any, Any]:
        rng = StatelessRandom(seed, epochs_b, examples_b)
        return augmentation.load(lambda _examples_k: source.parse(records_k), rng)

    fetched = map_reads(steps, fetch, split, global_batch_size)
    return fetched.map(finish, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(2)


def read_step_examples(
    split: SplitShards,
    global_batch_size: int,
    seed: int,
    step: int,
    source: EncodedSource | StreamedSource,
    augmentation: Augmentation = UNCHANGED,
    window: int | None = None,
) -> list[bytes]:
    """Returns the whole global batch of one step, as it lies in the shards.

    The batch consists of serialised tf.train.Examples, in the order of the batch. The three other
    examples of a mosaic follow its own example.
    """
    positions_B = step * global_batch_size + tf.range(global_batch_size, dtype=tf.int64)
    rng = StatelessRandom(seed, *make_order(split, seed, window).compute(positions_B))
    return list(source.read(augmentation.get_example_indices(rng)).numpy())


def build_evaluation_dataset(
    split: SplitShards, parse: Parse, batch: int, worker: int = 0, workers: int = 1
) -> tf.data.Dataset:
    """Returns every `workers`-th example once, beginning with number `worker`.

    The last batch may be smaller.
    """
    return read_parsed_batches(split, parse, batch, worker, workers).prefetch(2)
