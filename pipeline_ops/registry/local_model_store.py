"""The versions of one model in a local folder."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline_ops.artifacts.manifest import MAX_BYTES
from pipeline_ops.errors import DataError
from pipeline_ops.registry.model_store import (
    PUBLISH_SECONDS,
    AddVersion,
    VersionWriter,
    is_version_name,
)
from pipeline_ops.storage.local_files import (
    UnsafePath,
    create_atomically,
    describe_os_error,
    read_below,
    remove_by_rename,
    remove_staging_folders,
    staging_folder,
)
from pipeline_ops.storage.store_path import MAX_RECORD_BYTES
from pipeline_ops.system.locks import exclusive_lock

_PUBLISH_LOCK = ".publish.lock"


@dataclasses.dataclass(frozen=True)
class LocalModelStore:
    """A folder that TensorFlow Serving may poll. A version appears and disappears by one rename."""

    folder: Path

    @property
    def location(self) -> str:
        return str(self.folder)

    def list_numbers(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return sorted(
            int(entry.name)
            for entry in self.folder.iterdir()
            if is_version_name(entry.name) and not entry.is_symlink() and entry.is_dir()
        )

    def get_uri(self, number: int) -> str:
        return str(self.folder / str(number))

    def read_file(self, number: int, name: str) -> bytes | None:
        try:
            return read_below(self.folder, f"{number}/{name}", MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None

    @contextlib.contextmanager
    def publishing(self) -> Iterator[AddVersion]:
        with exclusive_lock(
            self.folder / _PUBLISH_LOCK,
            f"the right to publish in {self.folder}",
            wait_seconds=PUBLISH_SECONDS,
        ):
            remove_staging_folders(self.folder)
            yield self._add

    def fetch(self, number: int) -> Path:
        """Returns the version's own folder, without a copy."""
        return self.folder / str(number)

    def remove(self, number: int) -> None:
        remove_by_rename(self.folder / str(number))

    def list_records(self, folder: str) -> list[str]:
        path = self.folder / folder
        return (
            sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
            if path.is_dir()
            else []
        )

    def read_records(self, folder: str, names: Sequence[str]) -> list[bytes | DataError]:
        return [self._read_record(f"{folder}/{name}") for name in names]

    def _read_record(self, path: str) -> bytes | DataError:
        try:
            return read_below(self.folder, path, MAX_RECORD_BYTES)
        except UnsafePath as error:
            return error
        except (FileNotFoundError, PermissionError) as error:
            return DataError(f"cannot read {self.folder / path}: {describe_os_error(error)}")

    def create_record(self, folder: str, name: str, content: bytes) -> None:
        create_atomically(self.folder / folder / name, content)

    def _add(self, at_least: int, fill: VersionWriter) -> int:
        # A link or a file takes a number, too.
        used = (int(entry.name) for entry in self.folder.iterdir() if is_version_name(entry.name))
        number = max(at_least, 1 + max(used, default=0))
        with staging_folder(self.folder / str(number)) as staging:
            fill(staging, number)
        return number
