"""Random access to the examples of a step, by their number in the split.

Small data are held in memory. Of large data, single records are read at their place in the shards.
Decoded images can be kept as well, in memory or in a file of the host. A step gets the same tensors
in every case.

All of it is graph code: nothing here calls back into Python while batches are made.

Legend: b examples, N examples of the split.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pipeline_ops.config.input import InputOptions
from pipeline_ops.input.records import read_at, read_records, record_offsets
from pipeline_ops.input.tensorflow_start import import_tensorflow
from pipeline_ops.storage.atomic import names_file
from pipeline_ops.storage.digest import digest_of
from pipeline_ops.system.disk_cache import HostCache

if TYPE_CHECKING:
    from pipeline_ops.input.split import SplitShards

tf = import_tensorflow()

Parse = Callable[[Any], tuple[Any, Any]]
"""A function from serialised examples, string [b], to features and labels."""

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
                records_N = (
                    read_records(split.paths, split.removed)
                    .batch(split.num_examples)
                    .get_single_element()
                )
            self.read = lambda examples_b: tf.gather(records_N, examples_b)
        else:
            self.read = _reader(list(split.paths), _offsets(split, cache))

    def load(self, examples_b: tf.Tensor) -> tuple[Any, Any]:
        return self._parse(self.read(examples_b))


class MemorySource:
    """All examples, parsed, in the memory of this worker.

    They are one batch, so that `parse` pads all of them alike where examples differ in size, as
    boxes do.
    """

    def __init__(self, split: SplitShards, parse: Parse):
        with tf.device("/cpu:0"):
            self._all = _parsed(split, parse, batch=split.num_examples).get_single_element()

    def load(self, examples_b: tf.Tensor) -> tuple[Any, Any]:
        return tf.nest.map_structure(lambda values_N: tf.gather(values_N, examples_b), self._all)


class DiskSource:
    """All features, parsed, in one file of this host. Labels are in memory.

    The records have equal size, so the offset of each follows from arithmetic.

    Args:
      parse: makes features that are one tensor.
      version: changes whenever `parse` changes. Part of the cache key.
    """

    _FEATURES, _LABELS = "features.tfrecord", "labels-{}.npy"
    _FRAME_BYTES = 16  # of a TFRecord: length and two checksums

    def __init__(self, split: SplitShards, parse: Parse, cache: HostCache, version: str):
        self._spec, labels_spec = _parsed(split, parse).element_spec
        identity = digest_of([_identity(split), version, str(self._spec), str(labels_spec)])
        folder = cache.entry("parsed", identity, lambda made: self._write(split, parse, made))
        offsets_N = np.arange(split.num_examples, dtype=np.int64) * (
            _num_bytes(self._spec) + self._FRAME_BYTES
        )
        self._read = _reader([str(folder / self._FEATURES)], [offsets_N])
        with tf.device("/cpu:0"):
            leaves = [
                tf.convert_to_tensor(np.load(folder / self._LABELS.format(i)))
                for i in range(len(tf.nest.flatten(labels_spec)))
            ]
        self._labels = tf.nest.pack_sequence_as(labels_spec, leaves)

    def load(self, examples_b: tf.Tensor) -> tuple[Any, Any]:
        values = tf.io.decode_raw(
            self._read(examples_b), self._spec.dtype, fixed_length=_num_bytes(self._spec)
        )
        return tf.reshape(values, [-1, *self._spec.shape[1:]]), tf.nest.map_structure(
            lambda values_N: tf.gather(values_N, examples_b), self._labels
        )

    @classmethod
    def _write(cls, split: SplitShards, parse: Parse, folder: Path) -> None:
        all_labels = []
        with tf.io.TFRecordWriter(str(folder / cls._FEATURES)) as writer:
            for features, labels in _parsed(split, parse).as_numpy_iterator():
                all_labels.append(tf.nest.flatten(labels))
                for one in features:
                    writer.write(one.tobytes())
        for number, parts in enumerate(zip(*all_labels, strict=True)):
            _save(folder / cls._LABELS.format(number), np.concatenate(parts))


def open_source(
    split: SplitShards,
    parse: Parse,
    config: InputOptions,
    cache: HostCache,
    version: str,
    say: Callable[[str], None],
) -> ExampleSource:
    """Returns the source that the config asks for, if the data to keep fit its limits.

    Args:
      parse: the task's `parse`.
      version: the version of the code behind `parse`. It is part of the cache key on disk.
      say: receives the reason why data are not kept.
    """
    if config.cache == "none":
        return EncodedSource(split, parse, cache)
    features, labels = _parsed(split, parse).element_spec
    if _vary(features) or (
        config.cache == "disk" and (_vary(labels) or not isinstance(features, tf.TensorSpec))
    ):
        remedy = "" if _vary(features) else "; use train.input.cache: memory"
        say(f"examples are not cached, because not all of them have the same shape{remedy}")
        return EncodedSource(split, parse, cache)
    wanted_mib = (
        split.num_examples
        * sum(_num_bytes(leaf) for leaf in tf.nest.flatten((features, labels)) if not _vary(leaf))
        / 2**20
    )
    if wanted_mib > config.cache_limit_mib:
        say(
            f"decoded images are not cached: they need {wanted_mib:.0f} MiB, "
            f"and train.input.cache_limit_mib is {config.cache_limit_mib}"
        )
        return EncodedSource(split, parse, cache)
    return (
        MemorySource(split, parse)
        if config.cache == "memory"
        else DiskSource(split, parse, cache, version)
    )


def _parsed(split: SplitShards, parse: Parse, batch: int = _DECODE_BATCH) -> tf.data.Dataset:
    """Returns every example once, in batches."""
    return (
        read_records(split.paths, split.removed)
        .batch(batch)
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    )


def _vary(specs: Any) -> bool:
    """Returns whether examples differ in shape. Boxes do, and need next to no memory compared to
    their image.
    """
    return any(spec.shape[1:].num_elements() is None for spec in tf.nest.flatten(specs))


def _num_bytes(spec: tf.TensorSpec) -> int:
    """Returns the size of one example, if all have the same shape."""
    return math.prod(spec.shape[1:].as_list()) * spec.dtype.size


def _reader(paths: list[str], offsets: list[np.ndarray]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from numbers of examples to their records in the files."""
    with tf.device("/cpu:0"):
        names, all_offsets_N = tf.constant(paths), tf.constant(np.concatenate(offsets))
        files_N = tf.constant(
            np.repeat(np.arange(len(paths), dtype=np.int32), [len(each) for each in offsets])
        )

    def read(examples_b: tf.Tensor) -> tf.Tensor:
        places = (
            tf.gather(names, tf.gather(files_N, examples_b)),
            tf.gather(all_offsets_N, examples_b),
        )
        return tf.map_fn(lambda place: read_at(*place), places, fn_output_signature=tf.string)

    return read


def _offsets(split: SplitShards, cache: HostCache | None) -> list[np.ndarray]:
    """Returns the offsets of the records that count, for each shard."""
    if cache is None:
        found = [record_offsets(Path(path)) for path in split.paths]
    else:
        folder = cache.entry("offsets", _identity(split), lambda made: _write_offsets(split, made))
        found = [np.load(folder / f"{number:05d}.npy") for number in range(len(split.paths))]
    return [
        np.delete(each, list(gone))
        for each, gone in zip(found, split.removed or [()] * len(found), strict=True)
    ]


def _write_offsets(split: SplitShards, folder: Path) -> None:
    for number, path in enumerate(split.paths):
        _save(folder / f"{number:05d}.npy", record_offsets(Path(path)))


def _save(path: Path, array: np.ndarray) -> None:
    with names_file(path):
        np.save(path, array)


def _identity(split: SplitShards) -> str:
    """Returns a digest that changes when a shard changes, or the records removed from it."""
    status = [os.stat(path) for path in split.paths]
    return digest_of(
        [[path, s.st_size, s.st_mtime_ns] for path, s in zip(split.paths, status, strict=True)]
        + [list(map(list, split.removed))]
    )
