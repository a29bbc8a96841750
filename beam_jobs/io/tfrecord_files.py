"""Reads and writes TFRecord files without TensorFlow. `storage/tfrecord.py` describes the format.

A reader refuses data whose checksum is wrong. The records after a damaged one can be read, unless
the length of the damaged one is wrong: the start of the next record is then unknown. A written file
is whole or absent, in a folder or in a bucket.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import IO, BinaryIO

from pipeline_ops.artifacts.manifest import ManifestFile
from pipeline_ops.storage.checksums import ChecksumAccumulator
from pipeline_ops.storage.local_files import translate_write_errors
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.storage.tfrecord import compute_masked_crc, frame_record

_HEADER_BYTES, _FOOTER_BYTES = 12, 4
_MAX_RECORD_BYTES = 1 << 30  # a record is held in memory
_GZIP, _ZLIB = b"\x1f\x8b", (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


class CorruptRecord(Exception):
    """A record that cannot be read. `is_end`: the records after it cannot be read either.

    `reason` is `truncated`, `corrupt`, `compressed` or `too_large`. `detail` tells the offset.
    """

    def __init__(self, reason: str, detail: str, is_end: bool = False):
        super().__init__(reason, detail)
        self.reason, self.detail, self.is_end = reason, detail, is_end

    def __str__(self) -> str:
        return self.detail


def scan_records(file: BinaryIO, size: int) -> Iterator[tuple[int, bytes | CorruptRecord]]:
    """Yields every record of a file of `size` bytes, or the damage, and where its data begin."""
    offset = 0
    while offset < size:
        try:
            length = _read_length(file, offset, size)
            record: bytes | CorruptRecord = _read_data(file, offset, length)
        except CorruptRecord as damage:
            record = damage
        yield offset + _HEADER_BYTES, record
        if isinstance(record, CorruptRecord) and record.is_end:
            return
        offset += _HEADER_BYTES + length + _FOOTER_BYTES


def _read_data(file: BinaryIO, offset: int, length: int) -> bytes:
    if length > _MAX_RECORD_BYTES:
        detail = f"the record at byte {offset} has {length} bytes, allowed are {_MAX_RECORD_BYTES}"
        raise CorruptRecord("too_large", detail)
    data = file.read(length + _FOOTER_BYTES)
    if len(data) < length + _FOOTER_BYTES:
        raise CorruptRecord(
            "truncated", f"the file ends inside the record at byte {offset}", is_end=True
        )
    if compute_masked_crc(data[:length]) != data[length:]:
        raise CorruptRecord(
            "corrupt", f"the record at byte {offset} has another checksum than its data"
        )
    return data[:length]


def _read_length(file: BinaryIO, offset: int, size: int) -> int:
    """The length of a record. Leaves the file at the first byte of the data."""
    file.seek(offset)
    head = file.read(_HEADER_BYTES)
    if offset == 0 and head[:2] in (_GZIP, *_ZLIB) and compute_masked_crc(head[:8]) != head[8:]:
        raise CorruptRecord(
            "compressed",
            "a compressed TFRecord file. Write it again without compression, "
            "which saves no space for images.",
            is_end=True,
        )
    if len(head) < _HEADER_BYTES:
        raise CorruptRecord(
            "truncated",
            f"the file ends inside the head of the record at byte {offset}",
            is_end=True,
        )
    if compute_masked_crc(head[:8]) != head[8:]:
        raise CorruptRecord(
            "corrupt",
            f"no record begins at byte {offset}: the checksum of its length is wrong",
            is_end=True,
        )
    length = int.from_bytes(head[:8], "little")
    if length > size - offset - _HEADER_BYTES - _FOOTER_BYTES:
        raise CorruptRecord(
            "truncated",
            f"the record at byte {offset} has {length} bytes, "
            f"and the file only {size - offset} more",
            is_end=True,
        )
    return length


_BLOCK_BYTES = 1 << 18  # fits into the cache of a core, where a block is read twice


@contextlib.contextmanager
def write_tfrecord(path: StorePath) -> Iterator[TFRecordWriter]:
    """Writes a whole file or none. A missing folder stays missing: its worker was left over."""
    if path.is_local:
        with translate_write_errors(path.local):
            path.local.parent.stat()
    with path.open_for_writing() as file:
        writer = TFRecordWriter(path, file)
        yield writer
        writer.flush()


class TFRecordWriter:
    """Writes records to an open file, which `path` names."""

    def __init__(self, path: StorePath, file: IO[bytes]):
        self._path, self._file, self._checksums = path, file, ChecksumAccumulator()
        self._pending: list[bytes] = []
        self._num_pending = 0
        self.lengths: list[int] = []
        """The number of data bytes of each record."""

    def write(self, *parts: bytes) -> None:
        """Adds one record. It may come in parts, so that a large one needs no copy to join them."""
        num_bytes = sum(map(len, parts))
        self.lengths.append(num_bytes)
        self._pending += frame_record(*parts)
        self._num_pending += num_bytes
        if self._num_pending >= _BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes the records that are still in memory."""
        block = b"".join(self._pending)
        self._pending, self._num_pending = [], 0
        self._file.write(block)
        self._checksums.update(block)

    @property
    def file(self) -> ManifestFile:
        """The file for a manifest, after `flush`."""
        name, folder = self._path.name, self._path.parent
        place = None if self._path.is_local else f"{folder.parent.name}/{folder.name}/{name}"
        checksums = dataclasses.asdict(self._checksums.result)
        return ManifestFile(path=name, **checksums, stored_at=place)
