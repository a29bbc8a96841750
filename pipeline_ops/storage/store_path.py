"""The interface of a store: one file or folder in it, with the operations on it.

The package's docstring has the promises. A `StorePath` looks like a `pathlib.Path` where the two
agree. Unlike a path, it holds the root that it was made below: no operation leaves this root or
follows a link below it.

FileNotFoundError and FileExistsError mean what they say. All other problems are errors of ours:
ConfigError if the bucket, its rights or the credentials have to be changed, and MachineError if
a retry may help.
"""

from __future__ import annotations

import abc
import dataclasses
import posixpath
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Protocol, Self

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.checksums import Checksums
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_options import StoreOptions

BLOCK_BYTES = 4 << 20
"""The size of the parts in which large files are read."""
MAX_RECORD_BYTES = 4 << 20
"""The size limit for a small file that one process writes and another one reads."""


class StoreAway(MachineError):
    """The store does not respond, or it cannot work now. A request may have been carried out."""


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


@dataclasses.dataclass(frozen=True)
class StorePath(abc.ABC):
    """A file or folder in a store. It need not exist. `LocalPath` and `ObjectPath` are the kinds.

    Attributes:
      root_uri: the path or URI of the store's root, without a slash at the end.
      options: how to reach its bucket. None for a place in a folder.
      key: the relative path below the root, as `parse_relative_path` accepts it. "" for the root.
    """

    root_uri: str
    options: StoreOptions | None = None
    key: str = ""

    def __str__(self) -> str:
        return f"{self.root_uri}/{self.key}" if self.key else self.root_uri

    def __truediv__(self, name: str) -> Self:
        key = f"{self.key}/{name}" if self.key else str(name)
        return dataclasses.replace(self, key=key)

    @property
    def is_local(self) -> bool:
        """Returns whether it is in a folder of this host's file systems."""
        return self.options is None

    @property
    def local(self) -> Path:
        """The path on this host. Raises ValueError for a place in a bucket."""
        if not self.is_local:
            raise ValueError(f"{self} is not on this host's disk")
        return Path(self.root_uri, self.key)

    @property
    def root(self) -> Self:
        """The root of its store."""
        return dataclasses.replace(self, key="")

    @property
    def name(self) -> str:
        return posixpath.basename(str(self))

    @property
    def parent(self) -> Self:
        """The folder that holds it. Raises ValueError for the root, which is the limit."""
        if not self.key:
            raise ValueError(f"{self} is the root of its store")
        return dataclasses.replace(self, key=self.key.rpartition("/")[0])

    def with_name(self, name: str) -> Self:
        return self.parent / name

    @abc.abstractmethod
    def read(self, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
        """The content of a file. Raises UnsafePath if it is larger than allowed, or a link."""

    @abc.abstractmethod
    def open(self, max_bytes: int) -> AbstractContextManager[IO[bytes]]:
        """Opens a file for reading from its beginning. Raises like `read`."""

    @abc.abstractmethod
    def read_range(self, start: int, num_bytes: int) -> bytes:
        """A part of a file: fewer bytes at its end, and none beyond it."""

    @abc.abstractmethod
    def read_blocks(self) -> Iterator[bytes]:
        """The content of a large file, in parts."""

    @abc.abstractmethod
    def write(self, data: bytes, mode: int = 0o666) -> None:
        """Writes a file, or replaces it. `mode` has no meaning in a bucket."""

    @abc.abstractmethod
    def create(self, data: bytes) -> None:
        """Writes a new file. Of several writers at the same time, one succeeds.

        Raises FileExistsError if there is such a file with another content. If the content is the
        same, the file may be this call's own, whose response was lost. Writers that must know who
        was first therefore write different contents.
        """

    @abc.abstractmethod
    def upload(self, file: Path) -> None:
        """Copies a local file of any size into the store. Replaces a file of that name."""

    @abc.abstractmethod
    def open_for_writing(self) -> AbstractContextManager[IO[bytes]]:
        """Opens a large file that gets its name when the block ends without an error.

        The file of a bucket is in the temporary folder until then. Raises MachineError.
        """

    @abc.abstractmethod
    def download(self, target: Path, num_bytes: int) -> Checksums:
        """Copies a file into a new local file.

        It should have `num_bytes`. If it is longer, the copy ends soon after them.
        """

    @abc.abstractmethod
    def stat(self) -> Entry | None:
        """The file. None if there is none, or a folder."""

    def exists(self) -> bool:
        """Returns whether it is a file."""
        return self.stat() is not None

    @abc.abstractmethod
    def list_folder(self) -> list[Entry]:
        """The files and folders directly in a folder, by name. Empty if there is no such folder."""

    def find_in_folders(self, name: str) -> list[Entry]:
        """The files `*/<name>` below a folder, as `walk` would return them.

        Folders whose names begin with a dot are left out.
        """
        folders = [each.name for each in self.list_folder() if each.is_folder]
        names = [f"{folder}/{name}" for folder in folders if not folder.startswith(".")]
        parallel = 1 if self.is_local else 16
        found = map_requests(lambda each: (self / each).stat(), names, parallel)
        return [
            dataclasses.replace(entry, name=each)
            for each, entry in zip(names, found, strict=True)
            if entry
        ]

    @abc.abstractmethod
    def walk(self) -> list[Entry]:
        """All files below a folder, by name. Links are not followed."""

    @abc.abstractmethod
    def remove(self) -> None:
        """Removes a file. A missing one is ignored."""

    @abc.abstractmethod
    def remove_tree(self) -> None:
        """Removes a folder with everything in it. A missing one is ignored."""

    @abc.abstractmethod
    def open_log(self) -> LogWriter:
        """Opens a file for appending, and creates it if it is missing."""

    @abc.abstractmethod
    def read_log(self, offset: int, max_bytes: int) -> bytes:
        """Bytes of an appended file from an offset on. Empty at its end, or without a file."""

    @abc.abstractmethod
    def read_log_end(self, num_bytes: int) -> tuple[int, bytes]:
        """The last bytes of an appended file, and the offset of the first of them.

        (0, b"") if there is no such file.
        """


@dataclasses.dataclass(frozen=True)
class StoreUsage:
    """Requests to buckets, and bytes each way. Repetitions by the client are not counted."""

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
