"""The versions of one model in a local folder."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline_ops.artifacts.manifest import MAX_BYTES, NAME, SIGNATURE
from pipeline_ops.errors import DataError
from pipeline_ops.registry.model_store import (
    MAX_RECORD_BYTES,
    PUBLISH_SECONDS,
    Fill,
    is_version_name,
)
from pipeline_ops.storage.atomic import (
    create_whole,
    exclusive_lock,
    remove_by_rename,
    remove_stagings,
    staging_folder,
)
from pipeline_ops.storage.safe_paths import UnsafePath, read_below

_PUBLISH_LOCK = ".publish.lock"


@dataclasses.dataclass(frozen=True)
class LocalModelStore:
    """A folder that TensorFlow Serving may poll. A version appears and disappears by one rename."""

    folder: Path

    @property
    def place(self) -> str:
        return str(self.folder)

    def numbers(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return sorted(
            int(entry.name)
            for entry in self.folder.iterdir()
            if is_version_name(entry.name) and not entry.is_symlink() and entry.is_dir()
        )

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
        with exclusive_lock(
            self.folder / _PUBLISH_LOCK,
            f"the right to publish in {self.folder}",
            wait_seconds=PUBLISH_SECONDS,
        ):
            remove_stagings(self.folder)
            yield

    def add(self, at_least: int, owner: str, fill: Fill) -> int:
        taken = [
            int(entry.name) for entry in self.folder.iterdir() if is_version_name(entry.name)
        ]  # by a link or a file, too
        number = max(at_least, 1 + max(taken, default=0))
        with staging_folder(self.folder / str(number)) as staging:
            fill(staging, number)
        return number

    def fetch(self, number: int, cache: Path) -> Path:
        """Returns the version's own folder, without a copy."""
        return self.folder / str(number)

    def remove(self, number: int) -> None:
        remove_by_rename(self.folder / str(number))

    def records(self, folder: str) -> list[str]:
        place = self.folder / folder
        return (
            sorted(entry.name for entry in place.iterdir() if not entry.name.startswith("."))
            if place.is_dir()
            else []
        )

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
