"""Reads TFRecord files without TensorFlow, and refuses data whose checksum is wrong.

`tfrecord.py` describes the format. A damaged record does not hide the records after it, unless its
length is damaged. It is then unknown where the next record begins.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

from beam_jobs.io.tfrecord_writer import masked_crc

_HEAD_BYTES, _TAIL_BYTES = 12, 4
_MAX_RECORD_BYTES = 1 << 30  # a record is held in memory
_GZIP, _ZLIB = b"\x1f\x8b", (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


class Damaged(Exception):
    """A record that can't be read. `is_end` means that the records after it can't be read either.

    Args:
      reason: one word to count by: `truncated`, `corrupt`, `compressed` or `too_large`.
      detail: the fault, and its offset.
    """

    def __init__(self, reason: str, detail: str, is_end: bool = False):
        super().__init__(reason, detail)
        self.reason, self.detail, self.is_end = reason, detail, is_end

    def __str__(self) -> str:
        return self.detail


def scan_records(path: bytes) -> Iterator[tuple[int, bytes | Damaged]]:
    """Yields every record of a file with its offset, or the damage at that offset.

    Only one record is in memory at a time.

    Raises:
      OSError: the file can't be read.
    """
    with open(path, "rb") as file:
        size, offset = os.fstat(file.fileno()).st_size, 0
        while offset < size:
            try:
                record = _read_at(file, offset, size)
                length = len(record)
            except Damaged as damage:
                yield offset, damage
                if damage.is_end:
                    return
                length = _length_at(file, offset, size)
            else:
                yield offset, record
            offset += _HEAD_BYTES + length + _TAIL_BYTES


def read_record(path: bytes, offset: int) -> bytes:
    """The record that begins at an offset.

    Raises:
      Damaged: there is none, or its checksum is wrong.
      OSError: the file can't be read.
    """
    with open(path, "rb", buffering=0) as file:
        return _read_at(file, offset, os.fstat(file.fileno()).st_size)


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    length = _length_at(file, offset, size)
    if length > _MAX_RECORD_BYTES:
        raise Damaged(
            "too_large",
            f"the record at byte {offset} has {length} bytes, allowed are {_MAX_RECORD_BYTES}",
        )
    data = file.read(length + _TAIL_BYTES)
    if len(data) < length + _TAIL_BYTES:
        raise Damaged("truncated", f"the file ends inside the record at byte {offset}", is_end=True)
    if masked_crc(data[:length]) != data[length:]:
        raise Damaged("corrupt", f"the record at byte {offset} has another checksum than its data")
    return data[:length]


def _length_at(file: BinaryIO, offset: int, size: int) -> int:
    """The length of a record. Leaves the file at the first byte of the data."""
    file.seek(offset)
    head = file.read(_HEAD_BYTES)
    if offset == 0 and head[:2] in (_GZIP, *_ZLIB) and masked_crc(head[:8]) != head[8:]:
        raise Damaged(
            "compressed",
            "a compressed TFRecord file; write it again without compression, "
            "which saves nothing on images",
            is_end=True,
        )
    if len(head) < _HEAD_BYTES:
        raise Damaged(
            "truncated",
            f"the file ends inside the head of the record at byte {offset}",
            is_end=True,
        )
    if masked_crc(head[:8]) != head[8:]:
        raise Damaged(
            "corrupt",
            f"no record begins at byte {offset}: the checksum of its length is wrong",
            is_end=True,
        )
    (length,) = struct.unpack("<Q", head[:8])
    if length > size - offset - _HEAD_BYTES - _TAIL_BYTES:
        raise Damaged(
            "truncated",
            f"the record at byte {offset} has {length} bytes, "
            f"and the file only {size - offset} more",
            is_end=True,
        )
    return length
