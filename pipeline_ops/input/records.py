"""The serialised examples of shards: all of them in order, or a single one at its offset.

Examples that a later generation of the data set has removed are skipped. Training, evaluation and
the candidate's references read data sets with this module.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline_ops.errors import MachineError
from pipeline_ops.input.tensorflow_start import tf
from pipeline_ops.storage.read_errors import make_read_error
from pipeline_ops.storage.tfrecord import FRAME_BYTES

_LENGTH = struct.Struct("<Q")

Parse = Callable[[Any], tuple[Any, Any]]
"""A function from serialised examples, string [b], to features and labels."""


def read_records(paths: Sequence[str], removed: Sequence[Sequence[int]] = ()) -> tf.data.Dataset:
    """Returns every example once, shard after shard.

    Args:
      paths: the shards.
      removed: the positions to skip, for each shard. Empty if no shard has any.
    """
    if not any(removed):
        return tf.data.TFRecordDataset(list(paths))
    names = tf.constant(list(paths))
    skipped = tf.ragged.constant(
        [list(positions) for positions in removed], dtype=tf.int64, ragged_rank=1
    )

    def read(shard: tf.Tensor) -> tf.data.Dataset:
        positions = skipped[shard]
        remaining = (
            tf.data.TFRecordDataset(names[shard])
            .enumerate()
            .filter(lambda position, _: tf.reduce_all(positions != position))
        )
        return remaining.map(lambda _, record: record)

    return tf.data.Dataset.range(len(paths)).flat_map(read)


@contextlib.contextmanager
def translate_read_errors(paths: Sequence[str]) -> Iterator[None]:
    """Turns TensorFlow's errors while shards are read into DataError, or MachineError."""
    try:
        yield
    except tf.errors.OpError as error:
        place = paths[0] if len(paths) == 1 else f"{Path(paths[0]).parent}: a shard"
        raise make_read_error(
            f"{place} cannot be read", error, ". Run preprocess again."
        ) from error


def read_record_offsets(path: Path) -> np.ndarray:
    """Returns the offset of each record of a shard, int64. Reads only the lengths.

    Raises:
      MachineError: the lengths do not lead to the end of the file.
    """
    offsets, offset, size = [], 0, path.stat().st_size
    with open(path, "rb") as file:
        while offset < size:
            offsets.append(offset)
            header = os.pread(file.fileno(), _LENGTH.size, offset)
            offset += (
                _LENGTH.unpack(header)[0] + FRAME_BYTES if len(header) == _LENGTH.size else size
            )
    if offset != size:
        raise MachineError(
            f"{path} is truncated or not a TFRecord file: the record at byte {offsets[-1]} exceeds "
            "the end of the file. Remove it, and clear the task preprocess to write it again."
        )
    return np.array(offsets, np.int64)


def read_record_at(path: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
    """Reads the one record that begins at an offset of a file, and verifies its checksum.

    Takes scalars and must be called within a graph. The read is unbuffered, because random access
    does not use the bytes beyond the record.
    """
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=path[tf.newaxis],
        compression_type="",
        buffer_size=0,
        byte_offsets=offset[tf.newaxis],
    )
    return (
        tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
        .take(1)
        .get_single_element()
    )
