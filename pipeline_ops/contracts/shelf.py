"""Where the versions of one model stand: a folder whose versions are whole or not there. `registry.py` says what they mean.

Two kinds keep the same promises: a local folder, here, by renames, links and a lock; and a place in an object store, in
`object_shelf.py`, by conditional puts. Beside the versions lie small records, which are written once: of two who write
the same one at the same time, one is told that he came too late.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from pipeline_ops.contracts.errors import DataError
from pipeline_ops.contracts.files import create_whole, exclusive_lock, remove_by_rename, remove_stagings, staging_folder
from pipeline_ops.contracts.manifest import MAX_BYTES, NAME, SIGNATURE
from pipeline_ops.contracts.safe_paths import UnsafePath, read_below

STORES = ("s3",)
"""Whose drivers are known to refuse the second of two conditional puts."""
MAX_RECORD_BYTES = 4 << 20
"""Of a record beside the versions."""
PUBLISH_SECONDS = 600.0
"""How long a publisher waits for another one; one takes as long as the copy of a model."""
_PUBLISH_LOCK = ".publish.lock"
_VERSION_NAME = re.compile("[1-9][0-9]{0,9}")
Fill = Callable[[Path, int], None]
"""Writes a version's files, its manifest among them, into an empty local folder; it is told folder and number."""


class Shelf(Protocol):
    """The versions of one model, by number, and small records beside them."""

    @property
    def place(self) -> str:
        """Of the model, a path or a URI."""

    def numbers(self) -> list[int]:
        """Of the versions that are there, in order. What is half written is not."""

    def uri(self, number: int) -> str:
        """Of a version's folder, whether it is there or not."""

    def manifest(self, number: int) -> bytes | None:
        """The content of a version's manifest; None where there is no such version."""

    def signature(self, number: int) -> bytes | None:
        """The content of the file beside the manifest that signs it; None where there is none."""

    def publishing(self) -> contextlib.AbstractContextManager[None]:
        """To be held while a version is added. Removes what killed publishers have left."""

    def add(self, at_least: int, owner: str, fill: Fill) -> int:
        """Adds a version and returns its number, the next one that nobody has had.

        Args:
          owner: what is published; of two who publish the same at the same time, one is refused.

        Raises:
          MachineError: somebody else is publishing the same right now, or the store failed.
        """

    def fetch(self, number: int, cache: Path) -> Path:
        """A local folder that holds a version. What has to be copied is kept below `cache`, and checked against the manifest."""

    def remove(self, number: int) -> None:
        """Removes a version: from the sight of readers at once, from the disk after that. Does nothing where there is none."""

    def records(self, folder: str) -> list[str]:
        """The names of the records in a folder, in order."""

    def read(self, folder: str, names: Sequence[str]) -> list[bytes | DataError]:
        """The contents of some records, or for one of them why it can't be read."""

    def create(self, folder: str, name: str, content: bytes) -> None:
        """Writes a record. Raises FileExistsError if there is one already."""


def open_shelf(place: str) -> Shelf:
    """A local folder, or a URI of one of the STORES."""
    if not is_remote(place):
        return LocalShelf(Path(place))
    from pipeline_ops.contracts.object_shelf import ObjectShelf

    return ObjectShelf(place)


def is_remote(place: str) -> bool:
    return "://" in place


def is_version_name(name: str) -> bool:
    return bool(_VERSION_NAME.fullmatch(name))


@dataclasses.dataclass(frozen=True)
class LocalShelf:
    """A folder that TensorFlow Serving may poll: a version comes by one rename, and goes by one."""

    folder: Path

    @property
    def place(self) -> str:
        return str(self.folder)

    def numbers(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return sorted(int(entry.name) for entry in self.folder.iterdir() if is_version_name(entry.name) and not entry.is_symlink() and entry.is_dir())

    def uri(self, number: int) -> str:
        return str(self.folder / str(number))

    def manifest(self, number: int) -> bytes | None:
        return self._read(f"{number}/{NAME}")

    def signature(self, number: int) -> bytes | None:
        return self._read(f"{number}/{SIGNATURE}")

    def _read(self, path: str) -> bytes | None:
        try:
            return read_below(self.folder, path, MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None

    @contextlib.contextmanager
    def publishing(self) -> Iterator[None]:
        with exclusive_lock(self.folder / _PUBLISH_LOCK, f"the right to publish in {self.folder}", wait_seconds=PUBLISH_SECONDS):
            remove_stagings(self.folder)
            yield

    def add(self, at_least: int, owner: str, fill: Fill) -> int:
        taken = [int(entry.name) for entry in self.folder.iterdir() if is_version_name(entry.name)]  # by a link or a file, too
        number = max(at_least, 1 + max(taken, default=0))
        with staging_folder(self.folder / str(number)) as staging:
            fill(staging, number)
        return number

    def fetch(self, number: int, cache: Path) -> Path:
        """The version itself; nothing is copied."""
        return self.folder / str(number)

    def remove(self, number: int) -> None:
        remove_by_rename(self.folder / str(number))

    def records(self, folder: str) -> list[str]:
        place = self.folder / folder
        return sorted(entry.name for entry in place.iterdir() if not entry.name.startswith(".")) if place.is_dir() else []

    def read(self, folder: str, names: Sequence[str]) -> list[bytes | DataError]:
        return [self._record(f"{folder}/{name}") for name in names]

    def _record(self, path: str) -> bytes | DataError:
        try:
            return read_below(self.folder, path, MAX_RECORD_BYTES)
        except UnsafePath as error:
            return error
        except (FileNotFoundError, PermissionError) as error:
            return DataError(f"{self.folder / path} can't be read: {error.strerror}")

    def create(self, folder: str, name: str, content: bytes) -> None:
        create_whole(self.folder / folder / name, content)
