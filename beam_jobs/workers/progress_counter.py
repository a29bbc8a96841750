"""The workers' progress, counted in one small file that threads and processes append to.

It does not influence the result. The driver also stops its workers by removing the file.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from pathlib import Path

from pipeline_ops.storage.atomic import translate_write_errors

_UPDATE = struct.Struct("<II")
"""Records done, and records rejected among them, since the worker's last update."""
_UPDATE_INTERVAL_SECONDS = 0.25


class StoppedByDriver(Exception):
    """The driver has given up and does not need the shard."""


class ProgressCounter:
    """The driver's side of the progress file."""

    def __init__(self, path: Path):
        self._path, self._offset = path, 0
        self._done = self._rejected = 0
        with translate_write_errors(path):
            path.write_bytes(b"")

    def read(self) -> tuple[int, int]:
        """The number of records that all workers have finished so far, and of those rejected."""
        # The file is gone once a worker has given up.
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
            complete = data[: len(data) // _UPDATE.size * _UPDATE.size]
            self._offset += len(complete)
            for done, rejected in _UPDATE.iter_unpack(complete):
                self._done, self._rejected = self._done + done, self._rejected + rejected
        return self._done, self._rejected


def stop_workers(path: Path) -> None:
    """Stops all workers: each raises StoppedByDriver at its next update."""
    path.unlink(missing_ok=True)


class ProgressReporter:
    """Reports one worker's progress on a shard: call `add` after every record, `flush` at the end.

    Raises:
      StoppedByDriver: the driver has given up. Raised by the constructor, so that no further shard
        is begun, and by every update.
    """

    def __init__(self, path: Path):
        self._path = path
        self._done = self._rejected = 0
        self.flush()

    def add(self, is_rejected: bool) -> None:
        self._done += 1
        self._rejected += is_rejected
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        with translate_write_errors(self._path):
            try:
                descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            except FileNotFoundError:
                raise StoppedByDriver from None
            try:
                os.write(descriptor, _UPDATE.pack(self._done, self._rejected))
            finally:
                os.close(descriptor)
        self._done = self._rejected = 0
        self._next = time.monotonic() + _UPDATE_INTERVAL_SECONDS
