"""Reads a split sequentially, shard after shard and each record once.

Evaluation, export and the preparation of a training do so. The training itself reads single
examples at random places (`sources.py`), in an order of their own (`batches.py`). Examples that a
later generation of the data set has removed are skipped and have no numbers.

Legend: b the records of a batch, N examples of the split.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline_ops.contract.dataset import list_removed_positions, list_shard_paths, list_shards
from pipeline_ops.errors import DataError
from pipeline_ops.input.streaming import RemoteShard, RemoteSplit
from pipeline_ops.input.tensorflow_start import tf
from pipeline_ops.job.local_inputs import HostDataset
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.local_files import translate_write_errors
from pipeline_ops.storage.read_errors import make_read_error
from pipeline_ops.system.disk_cache import HostCache
from pipeline_ops.system.host import count_cores

Parse = Callable[[Any], tuple[Any, Any]]
"""A function from serialised examples, string [b], to features and labels."""

Tell = Callable[[int, int, str], None]
"""Tells how much of a long preparation is done: a number, the total, and the unit."""

TellPart = Callable[[int], None]
"""Tells how much of a part is done."""

PARSE_BATCH = 64
SHARDS = "scanned shards"
_MAX_STREAMED_BYTES_IN_MEMORY = 32 << 20
"""A larger split in a store is not read as a whole before the first step."""
_MAX_BATCHES_AHEAD, _MAX_BYTES_AHEAD = 16, 64 << 20
_MAX_PARTS = 64


@dataclasses.dataclass(frozen=True)
class SplitShards:
    """The shards of one split, as the manifest lists them. `paths` are URIs if they are streamed.

    Attributes:
      num_examples: the number of examples without removed ones.
      removed: the positions of removed records, for each shard. Empty if no shard has any.
      shard_sizes: the number of examples of each shard without removed ones.
      remote: reads the shards if they are streamed from a store.
      repeat_factors: float64 [N], the mean number of copies of each example in the order. None is
        one copy of each.
    """

    paths: tuple[str, ...]
    num_examples: int
    num_bytes: int
    removed: tuple[tuple[int, ...], ...] = ()
    shard_sizes: tuple[int, ...] = ()
    remote: RemoteSplit | None = None
    repeat_factors: np.ndarray | None = None

    @property
    def is_streamed(self) -> bool:
        """Returns whether the split is too large to be read as a whole before the first step."""
        return self.remote is not None and self.num_bytes > _MAX_STREAMED_BYTES_IN_MEMORY

    def divide(self) -> list[SplitShards]:
        """Returns parts of consecutive shards, in order, which the cache keeps one by one."""
        if not self.shard_sizes:
            return [self]
        num_shards, parts = len(self.paths), []
        num_parts = min(num_shards, _MAX_PARTS)
        for number in range(num_parts):
            shards = slice(number * num_shards // num_parts, (number + 1) * num_shards // num_parts)
            num_examples = sum(self.shard_sizes[shards])
            remote = self.remote
            if remote is not None:
                remote = dataclasses.replace(remote, shards=remote.shards[shards])
            part = SplitShards(
                self.paths[shards],
                num_examples,
                self.num_bytes * num_examples // max(1, self.num_examples),
                self.removed[shards],
                self.shard_sizes[shards],
                remote,
            )
            parts.append(part)
        return parts

    def release(self) -> None:
        """Ends the reading of a split in a store. It begins again with the next use."""
        if self.remote is not None:
            self.remote.close()

    def compute_epoch_end_step(self, epoch: int, global_batch_size: int) -> int:
        """Returns the step before which the last example of an epoch has been used.

        Epochs count from 0. The batch that holds this example may go on with the next epoch, so the
        lengths of epochs differ by at most one step.
        """
        return -(-self.num_examples * (epoch + 1) // global_batch_size)


def open_split(dataset: HostDataset, name: str, budget_bytes: int = 0) -> SplitShards:
    """Opens a split of a data set that this host reads.

    `budget_bytes` is the size of the shards that one reader of a streamed split may hold on this
    host. Others are read in parts.
    """
    files = list_shards(dataset.manifest, name)
    removed = list_removed_positions(dataset.manifest, name)
    counts = [file.num_examples for file in files if file.num_examples is not None]
    if len(counts) < len(files):
        raise DataError(
            f"{dataset.uri} does not count the examples of its shards. Run preprocess again."
        )
    paths, remote = list_shard_paths(dataset.uri, dataset.manifest, name), None
    if dataset.is_streamed:
        shards = [
            RemoteShard(dataset.locate(file), file, skipped, dataset.record_lengths.get(file.path))
            for file, skipped in zip(files, removed, strict=True)
        ]
        paths = [str(shard.path) for shard in shards]
        remote = RemoteSplit(tuple(shards), dataset.cache, budget_bytes)
    return SplitShards(
        tuple(paths),
        dataset.figures.num_examples[name],
        sum(file.num_bytes for file in files),
        removed,
        tuple(count - len(each) for count, each in zip(counts, removed, strict=True)),
        remote,
    )


def read_records(paths: Sequence[str], removed: Sequence[Sequence[int]] = ()) -> tf.data.Dataset:
    """Returns every serialised example of local shards once, shard after shard.

    `removed` has the positions to skip, for each shard. It is empty if no shard has any.
    """
    if not any(removed):
        return tf.data.TFRecordDataset(list(paths))
    names = tf.constant(list(paths))
    skipped = tf.ragged.constant([list(each) for each in removed], tf.int64, ragged_rank=1)

    def read(shard: tf.Tensor) -> tf.data.Dataset:
        positions = skipped[shard]
        remaining = (
            tf.data.TFRecordDataset(names[shard])
            .enumerate()
            .filter(lambda position, _: tf.reduce_all(positions != position))
        )
        return remaining.map(lambda _, record: record)

    return tf.data.Dataset.range(len(paths)).flat_map(read)


def iterate_records(records: tf.data.Dataset, paths: Sequence[str]) -> Iterator[Any]:
    """Yields what is made of the records of shards, as arrays.

    Raises DataError or MachineError if a shard cannot be read.
    """
    try:
        yield from records.as_numpy_iterator()
    except tf.errors.OpError as error:
        place = paths[0] if len(paths) == 1 else f"{Path(paths[0]).parent}: a shard"
        raise make_read_error(
            f"{place} cannot be read", error, ". Run preprocess again."
        ) from error


def read_batches(
    split: SplitShards, batch: int, worker: int = 0, workers: int = 1
) -> tf.data.Dataset:
    """Returns every `workers`-th serialised example once, shard after shard, in batches.

    Begins with number `worker`. The last batch may be smaller.
    """
    if split.remote is None:
        return read_records(split.paths, split.removed).shard(workers, worker).batch(batch)
    read = split.remote.sequential_reader.read
    numbers = tf.data.Dataset.range(worker, split.num_examples, workers).batch(batch)
    return map_reads(numbers, lambda examples_b: read(examples_b, examples_b[0]), split, batch)


def build_evaluation_dataset(
    split: SplitShards, parse: Parse, batch: int = PARSE_BATCH, worker: int = 0, workers: int = 1
) -> tf.data.Dataset:
    """Returns the features and labels of the batches of `read_batches`."""
    batches = read_batches(split, batch, worker, workers)
    return batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(2)


def map_reads(
    numbers: tf.data.Dataset, read: Callable[..., Any], split: SplitShards, batch: int
) -> tf.data.Dataset:
    """Maps steps or numbers to records of a store, several batches ahead of their use.

    The reads run in threads of the data set's own: a thread of TensorFlow's common pool that waits
    for the network would keep the step from running.
    """
    bytes_per_batch = batch * split.num_bytes / max(1, split.num_examples)
    ahead = max(2, min(_MAX_BATCHES_AHEAD, int(_MAX_BYTES_AHEAD / max(1.0, bytes_per_batch))))
    options = tf.data.Options()
    options.threading.private_threadpool_size = ahead + count_cores()
    batches = numbers.map(read, num_parallel_calls=ahead, deterministic=True)
    return batches.with_options(options)


def prepare_parts(
    split: SplitShards,
    cache: HostCache,
    kind: str,
    identity: Sequence[str],
    write: Callable[[SplitShards, TellPart, Path], None],
    tell: Tell,
    unit: str,
) -> Iterator[tuple[SplitShards, Path]]:
    """Yields the parts of a split with their entries in the host's cache, in order.

    `write` fills the folder of a part that has none yet. A killed process leaves the finished ones
    to the next. `unit` is that of the progress: examples of any kind, or shards.
    """
    counts_shards = unit == SHARDS
    total, done = len(split.paths) if counts_shards else split.num_examples, 0

    def tell_part(done_in_part: int) -> None:
        tell(done + done_in_part, total, unit)

    tell_part(0)
    for part in split.divide():
        digest = compute_digest([*identity, _compute_split_digest(part)])
        fill = functools.partial(write, part, tell_part)
        folder = cache.get_or_create(kind, digest, fill)
        done += len(part.paths) if counts_shards else part.num_examples
        tell_part(0)
        yield part, folder


def _compute_split_digest(split: SplitShards) -> str:
    """Returns a digest that changes when a shard changes, or the records removed from it."""
    if split.remote is not None:
        return compute_digest(
            [[shard.file.model_dump(), shard.removed] for shard in split.remote.shards]
        )
    status = [os.stat(path) for path in split.paths]
    return compute_digest(
        [[path, s.st_size, s.st_mtime_ns] for path, s in zip(split.paths, status, strict=True)]
        + [list(map(list, split.removed))]
    )


def save_arrays(path: Path, arrays: Iterable[np.ndarray]) -> None:
    with translate_write_errors(path):
        np.savez(path, *arrays)


def load_arrays(path: Path) -> list[np.ndarray]:
    with np.load(path) as file:
        return [file[name] for name in file.files]
