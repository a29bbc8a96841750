"""Random access to the examples of a split, by number, as the task's `parse` makes them.

Small data are held in memory. Of large data, single records are read at their offsets in shards.
Decoded images can be kept as well, in memory or in a file of the host: without the decoder, a batch
of small images costs a quarter of the CPU time. Shards in a store are streamed (`streaming.py`). A
step gets the same tensors in every case. Except for shards in a store, all of it is graph code:
nothing here calls back into Python while batches are made.

Legend: b examples of a batch, k records that they are made of, N examples of the split.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pipeline_ops.config.train import InputOptions
from pipeline_ops.input.augment import Augmentation
from pipeline_ops.input.order import ExampleOrder, StatelessRandom, WindowOrder
from pipeline_ops.input.reading import (
    PARSE_BATCH,
    SHARDS,
    Parse,
    SplitShards,
    Tell,
    TellPart,
    build_evaluation_dataset,
    load_arrays,
    map_reads,
    prepare_parts,
    read_batches,
    save_arrays,
)
from pipeline_ops.input.streaming import RecordReader, RemoteSplit, read_record_offsets
from pipeline_ops.input.tensorflow_start import tf
from pipeline_ops.storage.tfrecord import FRAME_BYTES
from pipeline_ops.system.disk_cache import HostCache

Read = Callable[[tf.Tensor], tf.Tensor]
"""A function from example numbers, int64 [b], to serialised examples, string [b]."""

Draw = Callable[[tf.Tensor], StatelessRandom]
"""Maps a step to the random numbers that select its examples."""

MAX_BYTES_IN_MEMORY = 256 << 20
"""A split up to this size is held in memory in serialised form."""
_PATIENCE_SECONDS = 1.0
_OFFSETS = "offsets.npz"
_IMAGES = "decoded images"


class ExampleSource(abc.ABC):
    """The examples of a split, which each step chooses."""

    @abc.abstractmethod
    def make_batches(
        self, steps: tf.data.Dataset, draw: Draw, augmentation: Augmentation, global_batch_size: int
    ) -> tf.data.Dataset:
        """Returns the augmented batch of each step, in order."""


class LocalSource(ExampleSource):
    """Examples on this host, which graph code reads in the order of their use."""

    @abc.abstractmethod
    def load(self, examples_b: tf.Tensor) -> tuple[Any, Any]:
        """Returns the features and labels of examples."""

    def make_batches(
        self, steps: tf.data.Dataset, draw: Draw, augmentation: Augmentation, global_batch_size: int
    ) -> tf.data.Dataset:
        def prepare(step: tf.Tensor) -> tuple[Any, Any]:
            rng = draw(step)
            return augmentation.apply(*self.load(augmentation.get_example_indices(rng)), rng)

        return steps.map(prepare, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


class StreamedSource(RecordReader, ExampleSource):
    """Shards of a store, fetched ahead in an order. An example is parsed when its turn comes."""

    def __init__(self, split: SplitShards, remote: RemoteSplit, parse: Parse, order: ExampleOrder):
        super().__init__(remote, order.list_upcoming_shards, _choose_patience(remote, order))
        self._shards, self._parse = split, parse

    def make_batches(
        self, steps: tf.data.Dataset, draw: Draw, augmentation: Augmentation, global_batch_size: int
    ) -> tf.data.Dataset:
        def fetch(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            examples_k = augmentation.get_example_indices(draw(step))
            return step, self.read(examples_k, step * global_batch_size)

        def prepare(step: tf.Tensor, records_k: tf.Tensor) -> tuple[Any, Any]:
            return augmentation.apply(*self._parse(records_k), draw(step))

        fetched = map_reads(steps, fetch, self._shards, global_batch_size)
        return fetched.map(prepare, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _choose_patience(remote: RemoteSplit, order: ExampleOrder) -> float:
    """Returns how long a batch waits for a shard that is being downloaded.

    Where a window follows another one and both fit into the cache, a shard is only late if the
    network is the bottleneck. Reading its records twice would make this worse.
    """
    if not isinstance(order, WindowOrder):
        return 0.0
    sizes = sorted((shard.file.num_bytes for shard in remote.shards), reverse=True)
    has_room = sum(sizes[: 2 * order.window]) <= remote.budget_bytes
    return _PATIENCE_SECONDS if has_room else 0.0


class EncodedSource(LocalSource):
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


class MemorySource(LocalSource):
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
            .batch(PARSE_BATCH)
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


class DiskSource(LocalSource):
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
        for part, folder in prepare_parts(split, cache, "parsed", identity, write, tell, _IMAGES):
            if part.num_examples:
                files.append(str(folder / self._FEATURES))
                offsets.append(np.arange(part.num_examples, dtype=np.int64) * num_bytes)
                labels.append(load_arrays(folder / self._LABELS))
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
        save_arrays(folder / cls._LABELS, map(np.concatenate, zip(*all_labels, strict=True)))


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
        return StreamedSource(split, split.remote, parse, order)
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
        save_arrays(folder / _OFFSETS, offsets)

    parts = prepare_parts(split, cache, "offsets", [_OFFSETS], write, tell, SHARDS)
    return [each for _, folder in parts for each in load_arrays(folder / _OFFSETS)]
