"""Writes TFRecord files without TensorFlow: whole or absent, and synced to disk.

`storage/tfrecord.py` describes the format.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType

from pipeline_ops.storage.atomic import translate_write_errors
from pipeline_ops.storage.checksums import ChecksumAccumulator, Checksums
from pipeline_ops.storage.tfrecord import frame_record

_BUFFER_BYTES = 1 << 20


class TFRecordWriter:
    """Writes one file, which gets its name when the `with` block ends without an error.

    There is no file after an error.

    Raises:
      MachineError: the disk refused the file (full, read-only, gone).
    """

    def __init__(self, path: Path):
        self._path = path
        self.lengths: list[int] = []
        """The number of data bytes of each record."""
        self._checksums = ChecksumAccumulator()
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")

    def __enter__(self) -> TFRecordWriter:
        with translate_write_errors(self._path):
            self._file = open(self._temporary, "wb", buffering=_BUFFER_BYTES)
        return self

    def write(self, *parts: bytes) -> None:
        """Adds one record. It may come in parts, so that a large one needs no copy to join them."""
        with translate_write_errors(self._path):
            self._file.writelines(self._checksums.pass_through(frame_record(*parts)))
        self.lengths.append(sum(map(len, parts)))

    @property
    def checksums(self) -> Checksums:
        """Size and checksums of all records so far."""
        return self._checksums.result

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                with translate_write_errors(self._path):
                    self._file.flush()
                    os.fsync(self._file.fileno())
                    os.replace(self._temporary, self._path)
        finally:
            # The first error has been raised. A leftover is removed with its folder.
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(OSError):
                self._temporary.unlink()
