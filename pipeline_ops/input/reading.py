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

Small data are held in memory. Of large data, single records are read at their offsets in shards.
Decoded images can be kept as well, in memory or in a file of the host. Shards in a store are
streamed (`streaming.py`). A step gets the same tensors in every case. Examples that a later
generation of the data set has removed are skipped and have no numbers. Except for shards in a
store, all of it is graph code: nothing here calls back into Python while batches are made.

Legend: B global batch, b this worker's part of it, k examples that it is made of, N examples of the
split.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline_ops.artifacts.dataset import list_removed_positions, list_shard_paths, list_shards
from pipeline_ops.config.train import AugmentOptions, InputOptions
from pipeline_ops.errors import DataError
from pipeline_ops.input.augment import Augmentation, ImageAugmentation
from pipeline_ops.input.order import (
    ExampleOrder,
    GlobalOrder,
    RepeatedOrder,
    StatelessRandom,
    WindowOrder,
    compute_repeat_factors,
)
from pipeline_ops.input.streaming import RecordReader, RemoteShard, RemoteSplit, read_record_offsets
from pipeline_ops.input.tensorflow_start import tf
from pipeline_ops.jobs.local_inputs import HostDataset
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.local_files import translate_write_errors
from pipeline_ops.storage.read_errors import make_read_error
from pipeline_ops.storage.tfrecord import FRAME_BYTES
from pipeline_ops.system.disk_cache import HostCache
from pipeline_ops.system.host import count_cores

Parse = Callable[[Any], tuple[Any, Any]]
"""A function from serialised examples, string [b], to features and labels."""

Tell = Callable[[int, int, str], None]
"""Tells how much of a long preparation is done: a number, the total, and the unit."""

TellPart = Callable[[int], None]
"""Tells how much of a part is done."""

Read = Callable[[tf.Tensor], tf.Tensor]
"""A function from example numbers, int64 [b], to serialised examples, string [b]."""

MAX_BYTES_IN_MEMORY = 256 << 20
"""A split up to this size is held in memory in serialised form."""
_MAX_STREAMED_BYTES_IN_MEMORY = 32 << 20
"""A larger split in a store is not read as a whole before the first step."""
_MAX_BATCHES_AHEAD, _MAX_BYTES_AHEAD = 16, 64 << 20
_PATIENCE_SECONDS = 1.0
_PARSE_BATCH = 64
_MAX_PARTS = 64
_OFFSETS, _CLASSES = "offsets.npz", "classes.npz"
_SHARDS, _IMAGES = "scanned shards", "decoded images"
_MAX_STEPS = 1 << 40
UNCHANGED = ImageAugmentation(AugmentOptions())


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
        paths = [str(shard.place) for shard in shards]
        remote = RemoteSplit(tuple(shards), dataset.cache, budget_bytes)
    return SplitShards(
        tuple(paths),
        dataset.figures.num_examples[name],
        sum(file.num_bytes for file in files),
        removed,
        tuple(count - len(each) for count, each in zip(counts, removed, strict=True)),
        remote,
    )


def make_order(split: SplitShards, seed: int, window: int | None) -> ExampleOrder:
    """Makes the order of a split. `window` is the number of shards whose examples are permuted
    together. None permutes the whole split.
    """
    if split.repeat_factors is not None:
        return RepeatedOrder(split.repeat_factors, seed, len(split.paths))
    if window is None:
        return GlobalOrder(split.num_examples, seed, len(split.paths))
    return WindowOrder(split.shard_sizes, seed, window)


def repeat_rare_classes(
    split: SplitShards,
    parse: Parse,
    list_classes: Callable[[Any], tf.Tensor],
    threshold: float,
    cache: HostCache,
    tell: Tell = lambda *_: None,
) -> SplitShards:
    """Returns the split with the repeat factors of its examples.

    The labels of all examples are read once, and their classes are kept in the host's cache.
    `list_classes` takes labels and returns int64 [b, n], -1 for none.
    """

    def write(part: SplitShards, tell: TellPart, folder: Path) -> None:
        start, pairs = 0, [np.empty((2, 0), np.int64)]
        batches = read_batches(part, _PARSE_BATCH)
        labels = batches.map(lambda serialized_b: list_classes(parse(serialized_b)[1]))
        for classes_bn in iterate_records(labels, part.paths):
            examples, columns = np.nonzero(classes_bn >= 0)
            pairs.append(np.stack([start + examples, classes_bn[examples, columns]]))
            start += len(classes_bn)
            tell(start)
        part.release()
        _save_arrays(folder / _CLASSES, [np.concatenate(pairs, axis=1)])

    start, pairs = 0, []
    for part, folder in _prepare_parts(split, cache, "parsed", [_CLASSES], write, tell, "labels"):
        [(examples, classes)] = _load_arrays(folder / _CLASSES)
        pairs.append(np.stack([start + examples, classes]))
        start += part.num_examples
    examples, classes = np.concatenate(pairs, axis=1)
    factors = compute_repeat_factors(examples, classes, split.num_examples, threshold)
    return dataclasses.replace(split, repeat_factors=factors)


def _prepare_parts(
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
    counts_shards = unit == _SHARDS
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
    return _map_reads(numbers, lambda examples_b: read(examples_b, examples_b[0]), split, batch)


def build_evaluation_dataset(
    split: SplitShards, parse: Parse, batch: int = _PARSE_BATCH, worker: int = 0, workers: int = 1
) -> tf.data.Dataset:
    """Returns the features and labels of the batches of `read_batches`."""
    batches = read_batches(split, batch, worker, workers)
    return batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(2)


def _map_reads(
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


class StreamedSource(RecordReader):
    """Shards of a store, fetched ahead in an order. An example is parsed when its turn comes."""

    def __init__(self, remote: RemoteSplit, parse: Parse, order: ExampleOrder):
        super().__init__(remote, order.list_upcoming_shards, _choose_patience(remote, order))
        self.parse = parse


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


class EncodedSource:
    """The shards. Every example is parsed when its turn comes.

    The cache keeps the offsets of the records, which have to be determined once for each host.
    """

    def __init__(
        self,
        split: SplitShards,
        parse: Parse,
        cache: HostCache,
        max_bytes_in_memory: int = MAX_BYTES_IN_MEMORY,
        tell: Tell = lambda *_: None,
    ):
        self._parse = parse
        if split.num_bytes <= max_bytes_in_memory:
            with tf.device("/cpu:0"):
                records_N = read_batches(split, split.num_examples).get_single_element()
            split.release()
            self.read: Read = functools.partial(tf.gather, records_N)
        else:
            self.read = _build_reader(list(split.paths), _list_offsets(split, cache, tell))

    def load(self, examples_b: tf.Tensor) -> tuple[Any, Any]:
        return self._parse(self.read(examples_b))


class MemorySource:
    """All examples, parsed, in the memory of this worker.

    Their labels are one batch, so that `parse` pads all of them alike where examples differ in
    size, as boxes do.
    """

    def __init__(self, split: SplitShards, parse: Parse, tell: Tell = lambda *_: None):
        tell(0, split.num_examples, _IMAGES)
        with tf.device("/cpu:0"):
            records_N = read_batches(split, split.num_examples).get_single_element()
            split.release()
            read_labels = tf.function(lambda serialized_N: parse(serialized_N)[1], autograph=False)
            self._labels = read_labels(records_N)
            self._features = self._decode(records_N, parse, tell)

    @staticmethod
    def _decode(records_N: tf.Tensor, parse: Parse, tell: Tell) -> Any:
        num_examples = len(records_N)
        batches = (
            tf.data.Dataset.from_tensor_slices(records_N)
            .batch(_PARSE_BATCH)
            .map(lambda serialized_b: parse(serialized_b)[0], tf.data.AUTOTUNE)
            .prefetch(2)
        )
        all_features = tf.nest.map_structure(
            lambda spec: np.empty([num_examples, *spec.shape[1:]], spec.dtype.as_numpy_dtype),
            batches.element_spec,
        )
        done = 0
        for features in batches.as_numpy_iterator():
            for values_N, values_b in zip(
                tf.nest.flatten(all_features), tf.nest.flatten(features), strict=True
            ):
                values_N[done : done + len(values_b)] = values_b
            done += len(tf.nest.flatten(features)[0])
            tell(done, num_examples, _IMAGES)
        return tf.nest.map_structure(tf.constant, all_features)

    def load(self, examples_b: tf.Tensor) -> tuple[Any, Any]:
        return _gather_examples(self._features, examples_b), _gather_examples(
            self._labels, examples_b
        )


class DiskSource:
    """All features, parsed, in files of this host, one for each part. Labels are in memory.

    The features of all examples are tensors of one shape, so the offset of each record follows from
    arithmetic. `version` is part of the cache key and changes whenever `parse` changes.
    """

    _FEATURES, _LABELS = "features.tfrecord", "labels.npz"

    def __init__(
        self,
        split: SplitShards,
        parse: Parse,
        cache: HostCache,
        version: str,
        tell: Tell = lambda *_: None,
    ):
        self._spec, labels_spec = build_evaluation_dataset(split, parse).element_spec
        identity = [version, str(self._spec), str(labels_spec)]
        num_bytes = _compute_num_bytes(self._spec) + FRAME_BYTES
        write = functools.partial(self._write, parse)
        files, offsets, labels = [], [], []
        for part, folder in _prepare_parts(split, cache, "parsed", identity, write, tell, _IMAGES):
            if part.num_examples:
                files.append(str(folder / self._FEATURES))
                offsets.append(np.arange(part.num_examples, dtype=np.int64) * num_bytes)
                labels.append(_load_arrays(folder / self._LABELS))
        self._read = _build_reader(files, offsets)
        with tf.device("/cpu:0"):
            leaves = [tf.constant(np.concatenate(each)) for each in zip(*labels, strict=True)]
        self._labels = tf.nest.pack_sequence_as(labels_spec, leaves)

    def load(self, examples_b: tf.Tensor) -> tuple[Any, Any]:
        values = tf.io.decode_raw(
            self._read(examples_b), self._spec.dtype, fixed_length=_compute_num_bytes(self._spec)
        )
        features = tf.reshape(values, [-1, *self._spec.shape[1:]])
        return features, _gather_examples(self._labels, examples_b)

    @classmethod
    def _write(cls, parse: Parse, split: SplitShards, tell: TellPart, folder: Path) -> None:
        all_labels, done = [], 0
        with tf.io.TFRecordWriter(str(folder / cls._FEATURES)) as writer:
            for features, labels in build_evaluation_dataset(split, parse).as_numpy_iterator():
                all_labels.append(tf.nest.flatten(labels))
                for one in features:
                    writer.write(one.tobytes())
                done += len(features)
                tell(done)
        split.release()
        _save_arrays(folder / cls._LABELS, map(np.concatenate, zip(*all_labels, strict=True)))


ExampleSource = StreamedSource | EncodedSource | MemorySource | DiskSource
"""Random access to the examples of a split, by number, as the task's `parse` makes them."""


def open_example_source(
    split: SplitShards,
    parse: Parse,
    config: InputOptions,
    cache: HostCache,
    version: str,
    on_message: Callable[[str], None],
    order: ExampleOrder,
    tell: Tell = lambda *_: None,
) -> ExampleSource:
    """Returns the source that the config asks for, if the data to keep fit its limits.

    Args:
      version: the version of the code behind `parse`. It is part of the cache key on disk.
      on_message: receives the reason why data are not kept.
      order: the order of the examples, in which a store is read.
    """
    if config.cache != "none":
        reason = _find_reason_against_cache(split, parse, config)
        if reason is None and config.cache == "memory":
            return MemorySource(split, parse, tell)
        if reason is None:
            return DiskSource(split, parse, cache, version, tell)
        on_message(reason)
    return open_encoded_source(split, parse, cache, order, tell)


def open_encoded_source(
    split: SplitShards,
    parse: Parse,
    cache: HostCache,
    order: ExampleOrder,
    tell: Tell = lambda *_: None,
) -> EncodedSource | StreamedSource:
    """Returns a source that keeps nothing decoded."""
    if split.remote is not None and split.is_streamed:
        return StreamedSource(split.remote, parse, order)
    return EncodedSource(split, parse, cache, tell=tell)


def _find_reason_against_cache(
    split: SplitShards, parse: Parse, config: InputOptions
) -> str | None:
    """Returns the reason why decoded examples are not kept, or None if they are."""
    if split.is_streamed and config.cache == "memory":
        return "decoded images are not cached, because the shards are streamed"
    features, labels = build_evaluation_dataset(split, parse).element_spec
    if _has_variable_shape(features) or (
        config.cache == "disk"
        and (_has_variable_shape(labels) or not isinstance(features, tf.TensorSpec))
    ):
        remedy = "" if _has_variable_shape(features) else ". Use train.input.cache: memory"
        return f"examples are not cached, because not all of them have the same shape{remedy}"
    # Labels of variable shape, such as boxes, need next to no memory compared to their image.
    fixed = [leaf for leaf in tf.nest.flatten((features, labels)) if not _has_variable_shape(leaf)]
    needed_mib = split.num_examples * sum(map(_compute_num_bytes, fixed)) / 2**20
    if needed_mib > config.cache_limit_mib:
        return (
            f"decoded images are not cached. They need {needed_mib:.0f} MiB, "
            f"and train.input.cache_limit_mib is {config.cache_limit_mib}"
        )
    return None


def _has_variable_shape(specs: Any) -> bool:
    return any(spec.shape[1:].num_elements() is None for spec in tf.nest.flatten(specs))


def _compute_num_bytes(spec: tf.TensorSpec) -> int:
    """Returns the size of one example, if all have the same shape."""
    return int(spec.shape[1:].num_elements() * spec.dtype.size)


def _gather_examples(structure: Any, examples_b: tf.Tensor) -> Any:
    return tf.nest.map_structure(lambda values_N: tf.gather(values_N, examples_b), structure)


def _build_reader(paths: list[str], offsets: list[np.ndarray]) -> Read:
    """Returns a function that reads records at their offsets in files, and verifies checksums."""
    with tf.device("/cpu:0"):
        names, all_offsets_N = tf.constant(paths), tf.constant(np.concatenate(offsets))
        files_N = tf.constant(
            np.repeat(np.arange(len(paths), dtype=np.int32), [len(each) for each in offsets])
        )

    def read_record(location: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        path, offset = location
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=path[tf.newaxis],
            compression_type="",
            buffer_size=0,  # random access does not use the bytes beyond the record
            byte_offsets=offset[tf.newaxis],
        )
        records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
        return records.take(1).get_single_element()

    def read(examples_b: tf.Tensor) -> tf.Tensor:
        paths_b = tf.gather(names, tf.gather(files_N, examples_b))
        locations = (paths_b, tf.gather(all_offsets_N, examples_b))
        return tf.map_fn(read_record, locations, fn_output_signature=tf.string)

    return read


def _list_offsets(split: SplitShards, cache: HostCache, tell: Tell) -> list[np.ndarray]:
    """Returns the offsets of the records that count, for each shard."""

    def write(part: SplitShards, tell: TellPart, folder: Path) -> None:
        removed = part.removed or [()] * len(part.paths)
        offsets = []
        for path, positions in zip(part.paths, removed, strict=True):
            offsets.append(np.delete(read_record_offsets(Path(path)), list(positions)))
            tell(len(offsets))
        _save_arrays(folder / _OFFSETS, offsets)

    parts = _prepare_parts(split, cache, "offsets", [_OFFSETS], write, tell, _SHARDS)
    return [each for _, folder in parts for each in _load_arrays(folder / _OFFSETS)]


def _save_arrays(path: Path, arrays: Iterable[np.ndarray]) -> None:
    with translate_write_errors(path):
        np.savez(path, *arrays)


def _load_arrays(path: Path) -> list[np.ndarray]:
    with np.load(path) as file:
        return [file[name] for name in file.files]


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


def slice_batch(worker: int, workers: int, global_batch_size: int) -> range:
    """Returns the examples of each global batch that a worker reads, counted in the batch."""
    return range(worker * global_batch_size // workers, (worker + 1) * global_batch_size // workers)


def build_training_dataset(
    split: SplitShards,
    source: ExampleSource,
    global_batch_size: int,
    batch_slice: range,
    seed: int,
    start_step: int,
    augmentation: Augmentation = UNCHANGED,
    window: int | None = None,
) -> tf.data.Dataset:
    """Returns endless batches from `start_step` on: this worker's part of each.

    `window` is the number of shards whose examples are permuted together. None is the whole split.
    """
    order = make_order(split, seed, window)
    slice_b = tf.constant(batch_slice, tf.int64)

    def draw(step: tf.Tensor) -> StatelessRandom:
        return StatelessRandom(seed, *order.compute(step * global_batch_size + slice_b))

    batches = tf.data.Dataset.range(start_step, _MAX_STEPS)
    prepare: Callable[..., tuple[Any, Any]]
    if isinstance(source, StreamedSource):
        read, parse = source.read, source.parse

        def fetch(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            examples_k = augmentation.get_example_indices(draw(step))
            return step, read(examples_k, step * global_batch_size)

        def prepare(step: tf.Tensor, records_k: tf.Tensor) -> tuple[Any, Any]:
            return augmentation.apply(*parse(records_k), draw(step))

        batches = _map_reads(batches, fetch, split, global_batch_size)
    else:
        load = source.load

        def prepare(step: tf.Tensor) -> tuple[Any, Any]:
            rng = draw(step)
            return augmentation.apply(*load(augmentation.get_example_indices(rng)), rng)

    return batches.map(prepare, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(2)


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
    examples of a mosaic follow its own example. Those that others are mixed with come last.
    """
    positions_B = step * global_batch_size + tf.range(global_batch_size, dtype=tf.int64)
    rng = StatelessRandom(seed, *make_order(split, seed, window).compute(positions_B))
    return list(source.read(augmentation.get_example_indices(rng)).numpy())
