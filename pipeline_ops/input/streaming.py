"""Batches from a split in a store, with one call of Python code for each of them.

TensorFlow calls `RecordReader.read` in threads of the data set's own, several batches ahead of
their use: a thread of TensorFlow's common pool that waits for the network would keep the step from
running. All other work on a batch is graph code, as for shards in a folder.

Legend: b examples, k examples that they are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline_ops.input.augment import Augmentation
from pipeline_ops.input.order import ExampleOrder, WindowOrder
from pipeline_ops.input.records import Parse, read_records
from pipeline_ops.input.remote_split import RecordReader, RemoteSplit
from pipeline_ops.input.split import SplitShards
from pipeline_ops.input.stateless_random import StatelessRandom
from pipeline_ops.input.tensorflow_start import tf
from pipeline_ops.system.cores import count_cores

_MAX_BATCHES_AHEAD, _MAX_BYTES_AHEAD = 16, 64 << 20
_PATIENCE_SECONDS = 1.0
_MAX_STREAMED_BYTES_IN_MEMORY = 32 << 20
"""A larger split in a store is not read as a whole before the first step."""
_BATCH = 64
"""The number of examples that are read together where no batches are asked for."""


class StreamedSource:
    """The shards of a store, read in an order. Every example is parsed when its turn comes.

    Args:
      split: the split, with its remote part.
      parse: the task's `parse`.
      order: the order, by which shards are fetched ahead.
    """

    def __init__(self, split: SplitShards, parse: Parse, order: ExampleOrder):
        self._split, self._parse = split, parse
        remote = _get_remote(split)
        self._reader = RecordReader(
            remote, order.list_upcoming_shards, _choose_patience(remote, order)
        )

    def read(self, examples_k: tf.Tensor, position: tf.Tensor | int = 0) -> tf.Tensor:
        """Returns serialised examples. `position` is the position of their batch in the order."""
        return _read(self._reader, examples_k, tf.cast(position, tf.int64))

    def load(self, examples_b: tf.Tensor) -> tuple[Any, Any]:
        return self._parse(self.read(examples_b))

    def stream(
        self,
        steps: tf.data.Dataset,
        global_batch_size: int,
        seed: int,
        draw: Callable[[tf.Tensor], StatelessRandom],
        augmentation: Augmentation | None,
    ) -> tf.data.Dataset:
        """Returns this worker's part of the batch of each step.

        Args:
          steps: the steps.
          global_batch_size: the number of positions of a step.
          seed: the seed of the random changes.
          draw: returns the examples of a step, with their random numbers.
          augmentation: the random changes of the examples. None leaves them as they are.
        """

        def fetch(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            rng = draw(step)
            examples_k = augmentation.get_example_indices(rng) if augmentation else rng.examples_b
            return rng.epochs_b, rng.examples_b, self.read(examples_k, step * global_batch_size)

        def finish(
            epochs_b: tf.Tensor, examples_b: tf.Tensor, records_k: tf.Tensor
        ) -> tuple[Any, Any]:
            if augmentation is None:
                return self._parse(records_k)
            rng = StatelessRandom(seed, epochs_b, examples_b)
            return augmentation.load(lambda _: self._parse(records_k), rng)

        ahead = _count_batches_ahead(self._split, global_batch_size)
        batches = steps.map(fetch, num_parallel_calls=ahead, deterministic=True).map(
            finish, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return _use_own_threads(batches, ahead)

    def close(self) -> None:
        """Ends the threads, and the use of shards in the cache."""
        self._reader.close()


def is_streamed(split: SplitShards) -> bool:
    """Returns whether the split is too large to be read as a whole before the first step."""
    return split.remote is not None and split.num_bytes > _MAX_STREAMED_BYTES_IN_MEMORY


def read_batches(
    split: SplitShards, batch: int, worker: int = 0, workers: int = 1
) -> tf.data.Dataset:
    """Returns every `workers`-th example once, shard after shard, in batches.

    Begins with number `worker`. The last batch may be smaller.
    """
    if split.remote is None:
        return read_records(split.paths, split.removed).shard(workers, worker).batch(batch)
    reader, ahead = split.remote.sequential_reader, _count_batches_ahead(split, batch)
    batches = (
        tf.data.Dataset.range(worker, split.num_examples, workers)
        .batch(batch)
        .map(
            lambda examples_b: _read(reader, examples_b, examples_b[0]),
            num_parallel_calls=ahead,
            deterministic=True,
        )
    )
    return _use_own_threads(batches, ahead)


def read_all(split: SplitShards) -> tf.data.Dataset:
    """Returns every example once, shard after shard."""
    if split.remote is None:
        return read_records(split.paths, split.removed)
    return read_batches(split, _BATCH).unbatch()


def _read(reader: RecordReader, examples_k: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
    records_k = tf.numpy_function(
        lambda first, numbers: reader.read(int(first), np.asarray(numbers)),
        [position, examples_k],
        tf.string,
    )
    return tf.ensure_shape(records_k, examples_k.shape)


def _get_remote(split: SplitShards) -> RemoteSplit:
    if split.remote is None:
        raise ValueError(f"{split.paths[:1]}: the shards of this split are not streamed")
    return split.remote


def _choose_patience(remote: RemoteSplit, order: ExampleOrder) -> float:
    """Returns how long a batch waits for a shard that is on its way.

    Where a window follows another one and both fit into the cache, a shard is only late if the
    network is the bottleneck. Reading its records twice would make this worse.
    """
    if not isinstance(order, WindowOrder):
        return 0.0
    sizes = sorted((shard.file.num_bytes for shard in remote.shards), reverse=True)
    has_room = sum(sizes[: 2 * order.window]) <= remote.budget_bytes
    return _PATIENCE_SECONDS if has_room else 0.0


def _count_batches_ahead(split: SplitShards, batch: int) -> int:
    """Returns how many batches are read at the same time, within a limit for their memory."""
    num_bytes = batch * split.num_bytes / max(1, split.num_examples)
    return max(2, min(_MAX_BATCHES_AHEAD, int(_MAX_BYTES_AHEAD / max(1.0, num_bytes))))


def _use_own_threads(batches: tf.data.Dataset, waiting: int) -> tf.data.Dataset:
    options = tf.data.Options()
    options.threading.private_threadpool_size = waiting + count_cores()
    return batches.with_options(options)
