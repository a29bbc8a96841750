"""The serialised examples of shards: all of them in order, or one of them where it lies.

What a later generation of the data set has removed is skipped. Called by whatever reads a data set: training,
evaluation, and the candidate's references.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline_ops.errors import MachineError
from pipeline_ops.input.tensorflow_start import import_tensorflow

tf = import_tensorflow()

_LENGTH = struct.Struct("<Q")
_FRAME_BYTES = 16
"""Of a TFRecord: eight for its length, four for the checksum of that, four for the checksum of its data."""


def read_records(paths: Sequence[str], removed: Sequence[Sequence[int]] = ()) -> tf.data.Dataset:
    """Every example once, shard after shard.

    Args:
      paths: the shards.
      removed: for each shard the positions to skip; empty where nothing is removed anywhere.
    """
    if not any(removed):
        return tf.data.TFRecordDataset(list(paths))
    names = tf.constant(list(paths))
    skipped = tf.ragged.constant([list(positions) for positions in removed], dtype=tf.int64, ragged_rank=1)

    def read(shard: tf.Tensor) -> tf.data.Dataset:
        positions = skipped[shard]
        kept = tf.data.TFRecordDataset(names[shard]).enumerate().filter(lambda position, _: tf.reduce_all(positions != position))
        return kept.map(lambda _, record: record)

    return tf.data.Dataset.range(len(paths)).flat_map(read)


def record_offsets(path: Path) -> np.ndarray:
    """Where each record of a shard begins, int64; only the lengths are read.

    Raises:
      MachineError: the lengths don't lead to the end of the file.
    """
    offsets, offset, size = [], 0, path.stat().st_size
    with open(path, "rb") as file:
        while offset < size:
            offsets.append(offset)
            header = os.pread(file.fileno(), _LENGTH.size, offset)
            offset += _LENGTH.unpack(header)[0] + _FRAME_BYTES if len(header) == _LENGTH.size else size
    if offset != size:
        raise MachineError(f"{path} is cut off or no TFRecord file: a record that begins at byte {offsets[-1]} goes beyond the end; "
                           "clear the task preprocess, and it is made again")
    return np.array(offsets, np.int64)


def read_at(path: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
    """The one record that begins at an offset of a file, with its checksum verified. Scalars; to be called within a graph.

    Unbuffered: what a buffer would read beyond the record is of no use to a reader at random.
    """
    variant = tf.raw_ops.TFRecordDatasetV2(filenames=path[tf.newaxis], compression_type="", buffer_size=0, byte_offsets=offset[tf.newaxis])
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string)).take(1).get_single_element()
