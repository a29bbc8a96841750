"""The place of one model's versions: a folder whose versions are whole or absent.

`registry.py` defines the meaning of versions. Two kinds of stores have the same guarantees: a local
folder (`local_model_store.py`), by renames, links and a lock, and a place in an object store
(`object_model_store.py`), by conditional puts. Small records lie next to the versions. Each is
written once. If two writers write the same record, one of them is refused.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from pipeline_ops.errors import DataError

MAX_RECORD_BYTES = 4 << 20
"""The size limit of a record next to the versions."""
PUBLISH_SECONDS = 600.0
"""The maximum wait of a publisher for another one, which takes as long as the copy of a model."""
_VERSION_NAME = re.compile("[1-9][0-9]{0,9}")
Fill = Callable[[Path, int], None]
"""Writes a version's files, including its manifest, into an empty local folder.

The arguments are the folder and the version's number.
"""


class ModelStore(Protocol):
    """The versions of one model, by number, and small records next to them."""

    @property
    def place(self) -> str:
        """The place of the model, a path or a URI."""

    def numbers(self) -> list[int]:
        """The numbers of the present versions, in order, without unfinished ones."""

    def uri(self, number: int) -> str:
        """The folder of a version. The folder need not exist."""

    def manifest(self, number: int) -> bytes | None:
        """The content of a version's manifest. None if there is no such version."""

    def signature(self, number: int) -> bytes | None:
        """The content of the file next to the manifest that signs it. None if there is none."""

    def publishing(self) -> contextlib.AbstractContextManager[None]:
        """Holds the store while a version is added. Removes the leftovers of killed publishers."""

    def add(self, at_least: int, owner: str, fill: Fill) -> int:
        """Adds a version and returns its number, the next one that was never used.

        Args:
          at_least: the smallest number that the version may get.
          owner: identifies the content. If two publishers add the same content at the same time,
            one of them is refused.
          fill: writes the version's files.

        Raises:
          MachineError: another process is publishing the same content right now, or the store
            failed.
        """

    def fetch(self, number: int, cache: Path) -> Path:
        """A local folder that holds a version.

        A copy, if one is necessary, is kept below `cache` and checked against the manifest.
        """

    def remove(self, number: int) -> None:
        """Removes a version: first it becomes invisible to readers, then its files are removed.

        A missing version is ignored.
        """

    def records(self, folder: str) -> list[str]:
        """The names of the records in a folder, in order."""

    def read(self, folder: str, names: Sequence[str]) -> list[bytes | DataError]:
        """The contents of some records. A DataError takes the place of an unreadable record."""

    def create(self, folder: str, name: str, content: bytes) -> None:
        """Writes a record. Raises FileExistsError if it already exists."""


def is_version_name(name: str) -> bool:
    return bool(_VERSION_NAME.fullmatch(name))
