"""The interface of a store, and the count of what a process asks of it.

The package's docstring has the promises. A key is a relative path below the root, as
`safe_paths.parse_relative_path` accepts it. The root itself is the key "".

FileNotFoundError and FileExistsError mean what they say. All other problems are errors of ours:
ConfigError if the bucket, its rights or the credentials have to be changed, and MachineError if
a retry may help.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Protocol

from pipeline_ops.storage.checksums import Checksums
from pipeline_ops.storage.store_options import StoreOptions

BLOCK_BYTES = 4 << 20
"""The size of the parts in which large files are read."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One file or folder in a listing.

    Attributes:
      name: relative to the place that was listed.
      num_bytes: the size; 0 for a folder.
      modified: seconds since 1970, by the store's clock; 0 for a folder of a bucket.
      is_folder: whether it holds other entries.
      version: changes with every write of an object: its etag, or the time if it has none. "" for
        a file or folder of a file system.
    """

    name: str
    num_bytes: int
    modified: float
    is_folder: bool = False
    version: str = ""


class LogWriter(Protocol):
    """Appends to one file. A file has one writer."""

    @property
    def size(self) -> int:
        """The present size of the file in bytes."""

    def append(self, data: bytes) -> None:
        """Adds bytes to the end. Readers see all of them or none."""


class Store(Protocol):
    """The files below one root."""

    @property
    def root(self) -> str:
        """A path or a URI, without a slash at the end."""

    @property
    def options(self) -> StoreOptions | None:
        """How to reach the bucket. None for a folder."""

    def read(self, key: str, max_bytes: int) -> bytes:
        """The content of a file. Raises UnsafePath if it is larger than allowed, or a link."""

    def open(self, key: str, max_bytes: int) -> AbstractContextManager[IO[bytes]]:
        """Opens a file for reading from its beginning. Raises like `read`."""

    def read_range(self, key: str, start: int, num_bytes: int) -> bytes:
        """A part of a file: fewer bytes at its end, and none beyond it."""

    def read_blocks(self, key: str) -> Iterator[bytes]:
        """The content of a large file, in parts."""

    def write(self, key: str, data: bytes, mode: int = 0o666) -> None:
        """Writes a file, or replaces it. `mode` has no meaning in a bucket."""

    def create(self, key: str, data: bytes) -> None:
        """Writes a new file. Of several writers at the same time, one succeeds.

        Raises:
          FileExistsError: there is such a file with another content. If the content is the same,
            the file may be this call's own, whose answer was lost. Writers that must know who was
            first therefore write different contents.
        """

    def upload(self, key: str, file: Path) -> None:
        """Copies a local file of any size into the store. Replaces a file of that name."""

    def download(self, key: str, target: Path, num_bytes: int) -> Checksums:
        """Copies a file into a new local file.

        It should have `num_bytes`. If it is longer, the copy ends soon after them.
        """

    def stat(self, key: str) -> Entry | None:
        """The file of that key. None if there is none, or a folder."""

    def list_folder(self, key: str) -> list[Entry]:
        """The files and folders directly in a folder, by name. Empty if there is no such folder."""

    def find_in_folders(self, key: str, name: str) -> list[Entry]:
        """The files `*/<name>` below a folder, as `walk` would return them."""

    def walk(self, key: str) -> list[Entry]:
        """All files below a folder, by name. Links are not followed."""

    def remove(self, key: str) -> None:
        """Removes a file. A missing one is ignored."""

    def remove_tree(self, key: str) -> None:
        """Removes a folder with everything in it. A missing one is ignored."""

    def open_log(self, key: str) -> LogWriter:
        """Opens a file for appending, and creates it if it is missing."""

    def read_log(self, key: str, offset: int, max_bytes: int) -> bytes:
        """Bytes of an appended file from an offset on. Empty at its end, or without a file."""

    def read_log_end(self, key: str, num_bytes: int) -> tuple[int, bytes]:
        """The last bytes of an appended file, and the offset of the first of them.

        (0, b"") if there is no such file.
        """


@dataclasses.dataclass(frozen=True)
class StoreUsage:
    """A number of requests to buckets, and the bytes that went each way.

    Repetitions by the client itself are not counted.
    """

    requests: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def __add__(self, other: StoreUsage) -> StoreUsage:
        return StoreUsage(
            self.requests + other.requests,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )


_lock = threading.Lock()
_usage = StoreUsage()


def count_usage(requests: int = 1, read: int = 0, written: int = 0) -> None:
    """Adds to the count of this process."""
    global _usage
    with _lock:
        _usage += StoreUsage(requests, read, written)


def read_usage() -> StoreUsage:
    """The count of this process so far."""
    return _usage
