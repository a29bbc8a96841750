"""Where the examples of a step come from: any of them, at random, by its number in the split.

What is small is held in memory; of what is large, single records are read where they lie in their shards. Decoded
images can be kept as well, in memory or in a file of the host. Whatever it is, a step gets the same tensors.

It is all graph: nothing here calls back into Python while batches are made.

Legend: b examples, N those of the split, H W C image.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pipeline_ops.contracts.config_input import Input
from pipeline_ops.contracts.fingerprint import digest_of
from pipeline_ops.contracts.host_cache import HostCache
from pipeline_ops.contracts.shards import ENCODED, KEY, LABEL
from pipeline_ops.input.records import read_at, read_records, record_offsets
from pipeline_ops.input.tensorflow_start import import_tensorflow

if TYPE_CHECKING:
    from pipeline_ops.input.dataset import Split

tf = import_tensorflow()

MAX_BYTES_IN_MEMORY = 256 << 20
"""A split up to this size is held in memory as it is."""

_DECODE_BATCH = 64
_FEATURES = {ENCODED: tf.io.FixedLenFeature([], tf.string), LABEL: tf.io.FixedLenFeature([], tf.int64), KEY: tf.io.FixedLenFeature([], tf.string)}


class Source(Protocol):
    def load(self, examples_b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """(images_bHWC uint8, labels_b int64) of examples by number, int64."""


class EncodedSource:
    """The shards: every example is decoded when its turn comes.

    Args:
      cache: keeps where records begin, which has to be found out once for each host.
    """

    def __init__(self, split: Split, cache: HostCache | None = None, max_bytes_in_memory: int = MAX_BYTES_IN_MEMORY):
        self._image_shape = split.image_shape
        if split.num_bytes <= max_bytes_in_memory:
            with tf.device("/cpu:0"):
                records_N = read_records(split.paths, split.removed).batch(split.num_examples).get_single_element()
            self.read = lambda examples_b: tf.gather(records_N, examples_b)
        else:
            self.read = _reader(list(split.paths), _offsets(split, cache))

    def load(self, examples_b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return parse(self.read(examples_b), self._image_shape)


class MemorySource:
    """All images, decoded, in the memory of this worker."""

    def __init__(self, split: Split):
        images_NHWC, labels_N = np.empty([split.num_examples, *split.image_shape], np.uint8), np.empty([split.num_examples], np.int64)
        done = 0
        for images, labels in _decoded(split):
            images_NHWC[done:done + len(labels)], labels_N[done:done + len(labels)] = images, labels
            done += len(labels)
        with tf.device("/cpu:0"):
            self._images_NHWC, self._labels_N = tf.convert_to_tensor(images_NHWC), tf.convert_to_tensor(labels_N)

    def load(self, examples_b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.gather(self._images_NHWC, examples_b), tf.gather(self._labels_N, examples_b)


class DiskSource:
    """All images, decoded, in one file of this host: records of equal size, so each is where arithmetic says."""

    _IMAGES, _LABELS = "images.tfrecord", "labels.npy"
    _FRAME_BYTES = 16  # of a TFRecord: length and two checksums

    def __init__(self, split: Split, cache: HostCache):
        folder = cache.entry("decoded", digest_of([_identity(split), list(split.image_shape)]), lambda made: self._write(split, made))
        num_bytes = math.prod(split.image_shape)
        offsets_N = np.arange(split.num_examples, dtype=np.int64) * (num_bytes + self._FRAME_BYTES)
        self._read = _reader([str(folder / self._IMAGES)], [offsets_N])
        self._shape = split.image_shape
        with tf.device("/cpu:0"):
            self._labels_N = tf.convert_to_tensor(np.load(folder / self._LABELS))

    def load(self, examples_b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        values = tf.io.decode_raw(self._read(examples_b), tf.uint8, fixed_length=math.prod(self._shape))
        return tf.reshape(values, [-1, *self._shape]), tf.gather(self._labels_N, examples_b)

    @classmethod
    def _write(cls, split: Split, folder: Path) -> None:
        all_labels = []
        with tf.io.TFRecordWriter(str(folder / cls._IMAGES)) as writer:
            for images, labels in _decoded(split):
                all_labels.append(labels)
                for image in images:
                    writer.write(image.tobytes())
        np.save(folder / cls._LABELS, np.concatenate(all_labels))


def open_source(split: Split, config: Input, cache: HostCache, say: Callable[[str], None]) -> Source:
    """The source that the config asks for, if what it would keep is within the limit; `say` is told otherwise."""
    wanted_mib = split.num_examples * math.prod(split.image_shape) / 2**20
    if config.cache != "none" and wanted_mib > config.cache_limit_mib:
        say(f"decoded images are not cached: they need {wanted_mib:.0f} MiB, and train.input.cache_limit_mib is {config.cache_limit_mib}")
    elif config.cache == "memory":
        return MemorySource(split)
    elif config.cache == "disk":
        return DiskSource(split, cache)
    return EncodedSource(split, cache)


def parse(serialized_b: tf.Tensor, image_shape: tuple[int, int, int]) -> tuple[tf.Tensor, tf.Tensor]:
    """A batch of serialised examples: parsing a batch at once costs half of parsing one by one."""
    features = tf.io.parse_example(serialized_b, {name: _FEATURES[name] for name in (ENCODED, LABEL)})
    decode = lambda encoded: tf.ensure_shape(  # noqa: E731
        tf.io.decode_image(encoded, channels=image_shape[-1], expand_animations=False), image_shape)
    images_bHWC = tf.map_fn(decode, features[ENCODED], fn_output_signature=tf.TensorSpec(image_shape, tf.uint8))
    return images_bHWC, features[LABEL]


def _decoded(split: Split):
    """Every example once, decoded, in batches of arrays."""
    batches = read_records(split.paths, split.removed).batch(_DECODE_BATCH)
    return batches.map(lambda batch_b: parse(batch_b, split.image_shape), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).as_numpy_iterator()


def _reader(paths: list[str], offsets: list[np.ndarray]) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function from numbers of examples to their records, as they lie in the files."""
    with tf.device("/cpu:0"):
        names, all_offsets_N = tf.constant(paths), tf.constant(np.concatenate(offsets))
        files_N = tf.constant(np.repeat(np.arange(len(paths), dtype=np.int32), [len(each) for each in offsets]))

    def read(examples_b: tf.Tensor) -> tf.Tensor:
        places = tf.gather(names, tf.gather(files_N, examples_b)), tf.gather(all_offsets_N, examples_b)
        return tf.map_fn(lambda place: read_at(*place), places, fn_output_signature=tf.string)

    return read


def _offsets(split: Split, cache: HostCache | None) -> list[np.ndarray]:
    """For each shard: where the records that count begin."""
    if cache is None:
        found = [record_offsets(Path(path)) for path in split.paths]
    else:
        folder = cache.entry("offsets", _identity(split), lambda made: _write_offsets(split, made))
        found = [np.load(folder / f"{number:05d}.npy") for number in range(len(split.paths))]
    return [np.delete(each, list(gone)) for each, gone in zip(found, split.removed or [()] * len(found), strict=True)]


def _write_offsets(split: Split, folder: Path) -> None:
    for number, path in enumerate(split.paths):
        np.save(folder / f"{number:05d}.npy", record_offsets(Path(path)))


def _identity(split: Split) -> str:
    """Changes when a shard does, or what is removed from it."""
    status = [os.stat(path) for path in split.paths]
    return digest_of([[path, s.st_size, s.st_mtime_ns] for path, s in zip(split.paths, status, strict=True)] + [list(map(list, split.removed))])
