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

from beam_jobs.stages.stage import Reject
from pipeline_ops.contract.manifest import ManifestFile
from pipeline_ops.raw_data.limits import MAX_RECORD_BYTES
from pipeline_ops.storage.checksums import ChecksumAccumulator
from pipeline_ops.storage.local_files import translate_write_errors
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.storage.tfrecord import (
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    compute_masked_crc,
    frame_record,
)

_GZIP, _ZLIB = b"\x1f\x8b", (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


def scan_records(file: BinaryIO, size: int) -> Iterator[tuple[int, bytes | Reject]]:
    """Yields every record of a file of `size` bytes, or the damage, and where its data begin.

    The reason for a Reject is `truncated`, `corrupt`, `compressed` or `too_large`.
    """
    offset = 0
    while offset < size:
        file.seek(offset)
        head = file.read(HEADER_BYTES)
        length = int.from_bytes(head[:8], "little")
        if damage := _find_damage(head, offset, length, size):
            yield offset + HEADER_BYTES, damage
            return
        yield offset + HEADER_BYTES, _read_data(file, offset, length)
        offset += FRAME_BYTES + length


def _find_damage(head: bytes, offset: int, length: int, size: int) -> Reject | None:
    """The damage after which no other record can be found: of the head, or of the length in it."""
    is_sound = compute_masked_crc(head[:8]) == head[8:]
    if offset == 0 and head[:2] in (_GZIP, *_ZLIB) and not is_sound:
        cure = "Write it again without compression, which saves no space for images."
        return Reject("compressed", f"a compressed TFRecord file. {cure}")
    if len(head) < HEADER_BYTES:
        return Reject("truncated", f"the file ends inside the head of the record at byte {offset}")
    if not is_sound:
        detail = f"no record begins at byte {offset}: the checksum of its length is wrong"
        return Reject("corrupt", detail)
    if length > size - offset - FRAME_BYTES:
        detail = f"the record at byte {offset} has {length} bytes, and the file only"
        return Reject("truncated", f"{detail} {size - offset} more")
    return None


def _read_data(file: BinaryIO, offset: int, length: int) -> bytes | Reject:
    if length > MAX_RECORD_BYTES:
        detail = f"the record at byte {offset} has {length} bytes, allowed are {MAX_RECORD_BYTES}"
        return Reject("too_large", detail)
    data = file.read(length + FOOTER_BYTES)
    if len(data) < length + FOOTER_BYTES:
        return Reject("truncated", f"the file ends inside the record at byte {offset}")
    if compute_masked_crc(data[:length]) != data[length:]:
        detail = f"the record at byte {offset} has another checksum than its data"
        return Reject("corrupt", detail)
    return data[:length]


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


class OptionalTFRecordWriter(contextlib.ExitStack):
    """Writes records to a file, which is made with the first one."""

    def __init__(self, path: StorePath):
        super().__init__()
        self._path = path
        self._writer: TFRecordWriter | None = None

    def write(self, record: bytes) -> None:
        self._writer = self._writer or self.enter_context(write_tfrecord(self._path))
        self._writer.write(record)

    @property
    def file(self) -> ManifestFile | None:
        """The file for a manifest, after the block, if there was a record."""
        return self._writer.file if self._writer else None
