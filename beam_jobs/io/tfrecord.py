"""Writes TFRecord files without TensorFlow: whole or absent, and synced to disk.

A record is its length (uint64), the masked CRC32C of these eight bytes, the data, and the masked CRC32C of the data,
all little endian; see "TFRecords format details" in TensorFlow's guide.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from types import TracebackType

import google_crc32c

from pipeline_ops.contracts.errors import MachineError

_BUFFER_BYTES = 1 << 20


class TFRecordWriter:
    """Writes one file. It has its name only once the `with` block has ended well; otherwise there is no file.

    Raises:
      MachineError: the disk refused it (full, read-only, gone).
    """

    def __init__(self, path: Path):
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")

    def __enter__(self) -> TFRecordWriter:
        try:
            self._file = open(self._temporary, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115
        except OSError as error:
            raise self._refused(error) from error
        return self

    def write(self, record: bytes) -> None:
        try:
            self._file.write(frame(record))
        except OSError as error:
            raise self._refused(error) from error

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            if kind is None:
                self._publish()
        except OSError as error:
            raise self._refused(error) from error
        finally:
            self._discard()

    def _publish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._temporary, self._path)

    def _discard(self) -> None:
        """Closes the file, and removes what has not got its name."""
        with contextlib.suppress(OSError):  # what is still buffered does not fit either; the first error has been raised
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def _refused(self, error: OSError) -> MachineError:
        return MachineError(f"could not write {self._path}: {error.strerror}; make room or mend the disk, then retry")


def frame(record: bytes) -> bytes:
    """A record as it stands in the file."""
    length = struct.pack("<Q", len(record))
    return b"".join((length, masked_crc(length), record, masked_crc(record)))


def masked_crc(data: bytes) -> bytes:
    """A CRC over data that holds its own CRC is weak, hence the mask."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
