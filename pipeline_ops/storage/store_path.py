"""One place in a store, with the operations on it.

It looks like a `pathlib.Path` where the two agree. Unlike a path, it holds the root that it was
made below: no operation leaves this root or follows a link below it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import posixpath
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from pipeline_ops.storage.atomic import open_atomically, translate_write_errors
from pipeline_ops.storage.checksums import Checksums
from pipeline_ops.storage.local_store import LocalStore
from pipeline_ops.storage.store import Entry, LogWriter, Store
from pipeline_ops.storage.store_options import StoreOptions

MAX_RECORD_BYTES = 4 << 20
"""The size limit for a small file that one process writes and another one reads."""


@dataclasses.dataclass(frozen=True)
class StorePath:
    """A file or folder in a store. It need not exist.

    Attributes:
      store: the store.
      key: the relative path below the store's root. The root itself is "".
    """

    store: Store
    key: str = ""

    def __str__(self) -> str:
        return f"{self.store.root}/{self.key}" if self.key else self.store.root

    def __truediv__(self, name: str) -> StorePath:
        return dataclasses.replace(self, key=f"{self.key}/{name}" if self.key else str(name))

    @property
    def root(self) -> StorePath:
        """The root of its store."""
        return dataclasses.replace(self, key="")

    @property
    def name(self) -> str:
        return posixpath.basename(str(self))

    @property
    def parent(self) -> StorePath:
        """The folder that holds it. Raises ValueError for the root, which is the limit."""
        if not self.key:
            raise ValueError(f"{self} is the root of its store")
        return dataclasses.replace(self, key=self.key.rpartition("/")[0])

    def with_name(self, name: str) -> StorePath:
        return self.parent / name

    @property
    def is_local(self) -> bool:
        """Returns whether it is in a folder of this host's file systems."""
        return isinstance(self.store, LocalStore)

    @property
    def options(self) -> StoreOptions | None:
        """How to reach its bucket. None for a place in a folder."""
        return self.store.options

    @property
    def local(self) -> Path:
        """The path on this host. Raises ValueError for a place in a bucket."""
        if not isinstance(self.store, LocalStore):
            raise ValueError(f"{self} is not on this host's disk")
        return self.store.folder / self.key

    def read(self, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
        return self.store.read(self.key, max_bytes)

    def open(self, max_bytes: int) -> AbstractContextManager[IO[bytes]]:
        return self.store.open(self.key, max_bytes)

    def read_range(self, start: int, num_bytes: int) -> bytes:
        return self.store.read_range(self.key, start, num_bytes)

    def read_blocks(self) -> Iterator[bytes]:
        return self.store.read_blocks(self.key)

    def write(self, data: bytes, mode: int = 0o666) -> None:
        self.store.write(self.key, data, mode)

    def create(self, data: bytes) -> None:
        self.store.create(self.key, data)

    def upload(self, file: Path) -> None:
        self.store.upload(self.key, file)

    @contextlib.contextmanager
    def open_for_writing(self) -> Iterator[IO[bytes]]:
        """Opens a large file that gets its name when the block ends without an error.

        The file of a bucket is in the temporary folder until then. Raises MachineError.
        """
        if self.is_local:
            with open_atomically(self.local) as file:
                yield file
            return
        with tempfile.NamedTemporaryFile(prefix=f"{self.name}-") as temporary:
            with translate_write_errors(Path(tempfile.gettempdir(), self.name)):
                yield temporary
                temporary.flush()
            self.upload(Path(temporary.name))

    def download(self, target: Path, num_bytes: int) -> Checksums:
        return self.store.download(self.key, target, num_bytes)

    def stat(self) -> Entry | None:
        return self.store.stat(self.key)

    def exists(self) -> bool:
        """Returns whether it is a file."""
        return self.stat() is not None

    def list_folder(self) -> list[Entry]:
        return self.store.list_folder(self.key)

    def find_in_folders(self, name: str) -> list[Entry]:
        """The files of one name in the folders directly below, in any order."""
        return self.store.find_in_folders(self.key, name)

    def walk(self) -> list[Entry]:
        return self.store.walk(self.key)

    def remove(self) -> None:
        self.store.remove(self.key)

    def remove_tree(self) -> None:
        self.store.remove_tree(self.key)

    def open_log(self) -> LogWriter:
        return self.store.open_log(self.key)

    def read_log(self, offset: int, max_bytes: int) -> bytes:
        return self.store.read_log(self.key, offset, max_bytes)

    def read_log_end(self, num_bytes: int) -> tuple[int, bytes]:
        return self.store.read_log_end(self.key, num_bytes)
