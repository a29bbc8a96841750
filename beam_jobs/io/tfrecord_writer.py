"""Writes TFRecord files without TensorFlow, in a folder or in a bucket: whole or absent.

`storage/tfrecord.py` describes the format.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from pathlib import Path
from types import TracebackType

from pipeline_ops.artifacts.manifest import ManifestFile
from pipeline_ops.storage.atomic import translate_write_errors
from pipeline_ops.storage.checksums import ChecksumAccumulator
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.storage.tfrecord import frame_record

_BUFFER_BYTES = 1 << 20


class TFRecordWriter:
    """Writes one file, which gets its name when the `with` block ends without an error.

    There is no file after an error. The file of a bucket is in the temporary folder until then.

    Raises:
      MachineError: the disk refused the file (full, read-only, gone), or the store did.
    """

    def __init__(self, path: StorePath):
        self._path = path
        self.lengths: list[int] = []
        """The number of data bytes of each record."""
        self._checksums = ChecksumAccumulator()

    def __enter__(self) -> TFRecordWriter:
        if self._path.is_local:
            path = self._path.local
            self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            self._shown = path
        else:
            self._shown = Path(tempfile.gettempdir(), self._path.name)
        with translate_write_errors(self._shown):
            if self._path.is_local:
                self._file = open(self._temporary, "wb", buffering=_BUFFER_BYTES)
            else:
                descriptor, name = tempfile.mkstemp(prefix=f"{self._path.name}-")
                self._temporary = Path(name)
                self._file = open(descriptor, "wb", buffering=_BUFFER_BYTES)
        return self

    def write(self, *parts: bytes) -> None:
        """Adds one record. It may come in parts, so that a large one needs no copy to join them."""
        with translate_write_errors(self._shown):
            self._file.writelines(self._checksums.pass_through(frame_record(*parts)))
        self.lengths.append(sum(map(len, parts)))

    @property
    def file(self) -> ManifestFile:
        """The file for a manifest, with all records so far."""
        found = dataclasses.asdict(self._checksums.result)
        return ManifestFile(path=self._path.name, **found)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                with translate_write_errors(self._shown):
                    self._file.flush()
                    if self._path.is_local:
                        os.fsync(self._file.fileno())
                        os.replace(self._temporary, self._path.local)
                if not self._path.is_local:
                    self._path.upload(self._temporary)
        finally:
            # The first error has been raised. A leftover is removed with its folder.
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(OSError):
                self._temporary.unlink()
