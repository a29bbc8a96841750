"""Writes TFRecord files without TensorFlow: whole or absent, and synced to disk.

A record is its length (uint64), the masked CRC32C of these eight bytes, the data, and the masked
CRC32C of the data, all little endian. See "TFRecords format details" in TensorFlow's guide.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from types import TracebackType

import google_crc32c

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.atomic import could_not_write

_BUFFER_BYTES = 1 << 20
_MOST_PARTS = 512  # the kernel takes 1024 at once


class TFRecordWriter:
    """Writes one file, which gets its name when the `with` block ends without an error.

    There is no file after an error.

    Raises:
      MachineError: the disk refused the file (full, read-only, gone).
    """

    def __init__(self, path: Path):
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")

    def __enter__(self) -> TFRecordWriter:
        try:
            self._file = open(self._temporary, "wb", buffering=0)
        except OSError as error:
            raise self._refused(error) from error
        self._parts, self._num_bytes = [], 0
        return self

    def write(self, *parts: bytes) -> None:
        """Adds one record. It may come in parts, so that a large one needs no copy to join them."""
        framed = frame(*parts)
        self._parts += framed
        self._num_bytes += sum(map(len, parts))
        if self._num_bytes >= _BUFFER_BYTES or len(self._parts) >= _MOST_PARTS:
            try:
                self._flush()
            except OSError as error:
                raise self._refused(error) from error

    def _flush(self) -> None:
        written, total = (
            os.writev(self._file.fileno(), self._parts) if self._parts else 0,
            sum(map(len, self._parts)),
        )
        if written < total:  # as on a full disk: the next write raises the error
            rest = memoryview(b"".join(self._parts))
            while written < total:
                written += self._file.write(rest[written:])
        self._parts, self._num_bytes = [], 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._publish()
        except OSError as error:
            raise self._refused(error) from error
        finally:
            self._discard()

    def _publish(self) -> None:
        self._flush()
        os.fsync(self._file.fileno())
        os.replace(self._temporary, self._path)

    def _discard(self) -> None:
        """Closes the file, and removes it if it did not get its name."""
        with contextlib.suppress(
            OSError
        ):  # the first error has been raised; a leftover is removed with its folder
            self._file.close()
            self._temporary.unlink(missing_ok=True)

    def _refused(self, error: OSError) -> MachineError:
        return could_not_write(self._path, error)


def frame(*parts: bytes) -> list[bytes]:
    """A record as it stands in the file, put together of parts."""
    length = struct.pack("<Q", sum(map(len, parts)))
    return [length + masked_crc(length), *parts, masked_crc(*parts)]


def masked_crc(*parts: bytes) -> bytes:
    """The masked CRC32C of the data.

    The mask is needed because a CRC over data that holds its own CRC is weak.
    """
    crc = 0
    for part in parts:
        crc = google_crc32c.extend(crc, part)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
