"""Random access to the examples of a step, by their number in the split.

Small data are held in memory. Of large data, single records are read at their offsets in shards.
Decoded images can be kept as well, in memory or in a file of the host. Shards in a store are
streamed (`streaming.py`). A step gets the same tensors in every case.

All of it is graph code: nothing here calls back into Python while batches are made.

Legend: b examples, N examples of the split.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pipeline_ops.config.input import InputOptions
from pipeline_ops.input.order import ExampleOrder
from pipeline_ops.input.records import Parse, read_record_at, read_record_offsets
from pipeline_ops.input.streaming import StreamedSource, is_streamed, read_all, read_batches
from pipeline_ops.input.tensorflow_start import tf
from pipeline_ops.storage.atomic import translate_write_errors
from pipeline_ops.storage.digest import compute_digest
from pipeline_ops.storage.tfrecord import FRAME_BYTES
from pipeline_ops.system.disk_cache import HostCache

if TYPE_CHECKING:
    from pipeline_ops.input.split import SplitShards

Read = Callable[[tf.Tensor], tf.Tensor]
"""A function from example numbers to serialised examples, string [b]."""

MAX_BYTES_IN_MEMORY = 256 << 20
"""A split up to this size is held in memory in serialised form."""

_DECODE_BATCH = 64


class ExampleSource(Protocol):
    def load(self, examples_b: tf.Tensor) -> tuple[Any, Any]:
        """Returns features and labels, made by the task's `parse`, of examples by number, int64."""


class EncodedSource:
    """The shards. Every example is parsed when its turn comes.

    Args:
      cache: keeps the offsets of the records, which have to be determined once for each host.
    """

    def __init__(
        self,
        split: SplitShards,
        parse: Parse,
        cache: HostCache | None = None,
        max_bytes_in_memory: int = MAX_BYTES_IN_MEMORY,
    ):
        self._parse = parse
        if split.num_bytes <= max_bytes_in_memory:
            with tf.device("/cpu:0"):
                records_N = read_all(split).batch(split.num_examples).get_single_element()
            split.release()
            self.read: Read = functools.partial(tf.gather, records_N)
        else:
            self.read = _build_reader(list(split.paths), _read_offsets(split, cache))

    def load(self, examples_b: tf.Tensor) -> tuple[Any, Any]:
        return self._parse(self.read(examples_b))


class MemorySource:
    """All examples, parsed, in the memory of this worker.

    They are one batch, so that `parse` pads all of them alike where examples differ in size, as
    boxes do.
    """

    def __init__(self, split: SplitShards, parse: Parse):
        with tf.device("/cpu:0"):
            self._all = _build_parsed_dataset(
                split, parse, batch=split.num_examples
            ).get_single_element()
        split.release()

    def load(self, examples_b: tf.Tensor) -> tuple[Any, Any]:
        features, labels = _gather_examples(self._all, examples_b)
        return features, labels


class DiskSource:
    """All features, parsed, in one file of this host. Labels are in memory.

    The records have equal size, so the offset of each follows from arithmetic.

    Args:
      parse: makes features that are one tensor.
      version: changes whenever `parse` changes. Part of the cache key.
    """

    _FEATURES, _LABELS = "features.tfrecord", "labels-{}.npy"

    def __init__(self, split: SplitShards, parse: Parse, cache: HostCache, version: str):
        self._spec, labels_spec = _build_parsed_dataset(split, parse).element_spec
        identity = compute_digest(
            [_compute_split_digest(split), version, str(self._spec), str(labels_spec)]
        )
        folder = cache.get_or_create(
            "parsed", identity, lambda folder: self._write(split, parse, folder)
        )
        offsets_N = np.arange(split.num_examples, dtype=np.int64) * (
            _compute_num_bytes(self._spec) + FRAME_BYTES
        )
        self._read = _build_reader([str(folder / self._FEATURES)], [offsets_N])
        with tf.device("/cpu:0"):
            leaves = [
                tf.convert_to_tensor(np.load(folder / self._LABELS.format(i)))
                for i in range(len(tf.nest.flatten(labels_spec)))
            ]
        self._labels = tf.nest.pack_sequence_as(labels_spec, leaves)

    def load(self, examples_b: tf.Tensor) -> tuple[Any, Any]:
        values = tf.io.decode_raw(
            self._read(examples_b), self._spec.dtype, fixed_length=_compute_num_bytes(self._spec)
        )
        features = tf.reshape(values, [-1, *self._spec.shape[1:]])
        return features, _gather_examples(self._labels, examples_b)

    @classmethod
    def _write(cls, split: SplitShards, parse: Parse, folder: Path) -> None:
        all_labels = []
        with tf.io.TFRecordWriter(str(folder / cls._FEATURES)) as writer:
            for features, labels in _build_parsed_dataset(split, parse).as_numpy_iterator():
                all_labels.append(tf.nest.flatten(labels))
                for one in features:
                    writer.write(one.tobytes())
        split.release()
        for number, parts in enumerate(zip(*all_labels, strict=True)):
            _save(folder / cls._LABELS.format(number), np.concatenate(parts))


def open_example_source(
    split: SplitShards,
    parse: Parse,
    config: InputOptions,
    cache: HostCache,
    version: str,
    on_message: Callable[[str], None],
    order: ExampleOrder,
) -> ExampleSource:
    """Returns the source that the config asks for, if the data to keep fit its limits.

    Args:
      parse: the task's `parse`.
      version: the version of the code behind `parse`. It is part of the cache key on disk.
      on_message: receives the reason why data are not kept.
      order: the order of the examples, in which a store is read.
    """
    if config.cache == "none":
        return open_encoded_source(split, parse, cache, order)
    if reason := _find_reason_against_cache(split, parse, config):
        on_message(reason)
        return open_encoded_source(split, parse, cache, order)
    return (
        MemorySource(split, parse)
        if config.cache == "memory"
        else DiskSource(split, parse, cache, version)
    )


def _find_reason_against_cache(
    split: SplitShards, parse: Parse, config: InputOptions
) -> str | None:
    """Returns the reason why decoded examples are not kept, or None if they are."""
    if is_streamed(split) and config.cache == "memory":
        return "decoded images are not cached, because the shards are streamed"
    features, labels = _build_parsed_dataset(split, parse).element_spec
    if _has_variable_shape(features) or (
        config.cache == "disk"
        and (_has_variable_shape(labels) or not isinstance(features, tf.TensorSpec))
    ):
        remedy = "" if _has_variable_shape(features) else ". Use train.input.cache: memory"
        return f"examples are not cached, because not all of them have the same shape{remedy}"
    needed_mib = (
        split.num_examples
        * sum(
            _compute_num_bytes(leaf)
            for leaf in tf.nest.flatten((features, labels))
            if not _has_variable_shape(leaf)
        )
        / 2**20
    )
    if needed_mib > config.cache_limit_mib:
        return (
            f"decoded images are not cached. They need {needed_mib:.0f} MiB, "
            f"and train.input.cache_limit_mib is {config.cache_limit_mib}"
        )
    return None


def open_encoded_source(
    split: SplitShards, parse: Parse, cache: HostCache, order: ExampleOrder
) -> EncodedSource | StreamedSource:
    """Returns a source that keeps nothing decoded."""
    if is_streamed(split):
        return StreamedSource(split, parse, order)
    return EncodedSource(split, parse, cache)


def _build_parsed_dataset(
    split: SplitShards, parse: Parse, batch: int = _DECODE_BATCH
) -> tf.data.Dataset:
    """Returns every example once, in batches."""
    return read_batches(split, batch).map(
        parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )


def _has_variable_shape(specs: Any) -> bool:
    """Returns whether examples differ in shape. Boxes do, and need next to no memory compared to
    their image.
    """
    return any(spec.shape[1:].num_elements() is None for spec in tf.nest.flatten(specs))


def _compute_num_bytes(spec: tf.TensorSpec) -> int:
    """Returns the size of one example, if all have the same shape."""
    return int(spec.shape[1:].num_elements() * spec.dtype.size)


def _gather_examples(structure: Any, examples_b: tf.Tensor) -> Any:
    return tf.nest.map_structure(lambda values_N: tf.gather(values_N, examples_b), structure)


def _build_reader(paths: list[str], offsets: list[np.ndarray]) -> Read:
    """Returns a function from numbers of examples to their records in the files."""
    with tf.device("/cpu:0"):
        names, all_offsets_N = tf.constant(paths), tf.constant(np.concatenate(offsets))
        files_N = tf.constant(
            np.repeat(np.arange(len(paths), dtype=np.int32), [len(each) for each in offsets])
        )

    def read(examples_b: tf.Tensor) -> tf.Tensor:
        locations = (
            tf.gather(names, tf.gather(files_N, examples_b)),
            tf.gather(all_offsets_N, examples_b),
        )
        return tf.map_fn(
            lambda location: read_record_at(*location), locations, fn_output_signature=tf.string
        )

    return read


def _read_offsets(split: SplitShards, cache: HostCache | None) -> list[np.ndarray]:
    """Returns the offsets of the records that count, for each shard."""
    if cache is None:
        found = [read_record_offsets(Path(path)) for path in split.paths]
    else:
        folder = cache.get_or_create(
            "offsets", _compute_split_digest(split), lambda folder: _write_offsets(split, folder)
        )
        found = [np.load(folder / f"{number:05d}.npy") for number in range(len(split.paths))]
    return [
        np.delete(each, list(removed))
        for each, removed in zip(found, split.removed or [()] * len(found), strict=True)
    ]


def _write_offsets(split: SplitShards, folder: Path) -> None:
    for number, path in enumerate(split.paths):
        _save(folder / f"{number:05d}.npy", read_record_offsets(Path(path)))


def _save(path: Path, array: np.ndarray) -> None:
    with translate_write_errors(path):
        np.save(path, array)


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
