"""The serialised examples of shards: all of them in order, or a single one at its offset.

Examples that a later generation of the data set has removed are skipped. Training, evaluation and
the candidate's references read data sets with this module.
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
"""The bytes of a TFRecord besides its data: eight for its length, four for the checksum of the
length, four for the checksum of the data.
"""


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
        kept = (
            tf.data.TFRecordDataset(names[shard])
            .enumerate()
            .filter(lambda position, _: tf.reduce_all(positions != position))
        )
        return kept.map(lambda _, record: record)

    return tf.data.Dataset.range(len(paths)).flat_map(read)


def record_offsets(path: Path) -> np.ndarray:
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
                _LENGTH.unpack(header)[0] + _FRAME_BYTES if len(header) == _LENGTH.size else size
            )
    if offset != size:
        raise MachineError(
            f"{path} is cut off or no TFRecord file: a record that begins at byte {offsets[-1]} "
            "goes beyond the end; clear the task preprocess, and it is made again"
        )
    return np.array(offsets, np.int64)


def read_at(path: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
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
