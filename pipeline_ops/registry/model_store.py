"""The store of one model's versions: a folder whose versions are whole or absent.

`registry.py` defines the meaning of versions. Two kinds of stores have the same guarantees: a local
folder (`local_model_store.py`), by renames, links and a lock, and a folder in a bucket
(`object_model_store.py`), by conditional puts and a lease. Small records lie next to the versions.
Each is written once. If two writers write the same record, one of them is refused.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from pipeline_ops.errors import DataError

PUBLISH_SECONDS = 600.0
"""The maximum wait of a publisher for another one, which takes as long as the copy of a model."""
_VERSION_NAME = re.compile("[1-9][0-9]{0,9}")
VersionWriter = Callable[[Path, int], None]
"""Writes a version's files, including its manifest, into an empty local folder.

The arguments are the folder and the version's number.
"""
AddVersion = Callable[[int, VersionWriter], int]
"""Adds one version and returns its number, the next one that was never used.

The arguments are the smallest number that the version may get, and the writer of its files.

Raises:
  MachineError: the store failed, or this process was paused or cut off for so long that another one
    publishes now. A retry finds the version, if it was published all the same.
"""


class ModelStore(Protocol):
    """The versions of one model, by number, and small records next to them."""

    @property
    def location(self) -> str:
        """The location of the model, a path or a URI."""

    def list_numbers(self) -> list[int]:
        """The numbers of the present versions, in order, without unfinished ones."""

    def get_uri(self, number: int) -> str:
        """The folder of a version. The folder need not exist."""

    def read_file(self, number: int, name: str) -> bytes | None:
        """The content of a version's file. None if there is none."""

    def publishing(self) -> contextlib.AbstractContextManager[AddVersion]:
        """Holds the store while a version is added. Removes the leftovers of killed publishers.

        Raises:
          MachineError: another process publishes for more than PUBLISH_SECONDS.
        """

    def fetch(self, number: int) -> Path:
        """A local folder that holds a version.

        A copy, if one is necessary, is kept in the host's cache (`system/disk_cache.py`), and was
        checked against the manifest when it was made.

        Raises:
          DataError: it cannot be copied, because there is no such version, or a file of it does
            not match the manifest.
        """

    def remove(self, number: int) -> None:
        """Removes a version: first it becomes invisible to readers, then its files are removed.

        A missing version is ignored.
        """

    def list_records(self, folder: str) -> list[str]:
        """The names of the records in a folder, in order."""

    def read_records(self, folder: str, names: Sequence[str]) -> list[bytes | DataError]:
        """The contents of some records. A DataError takes the place of an unreadable record."""

    def create_record(self, folder: str, name: str, content: bytes) -> None:
        """Writes a record. Raises FileExistsError if it already exists."""


def is_version_name(name: str) -> bool:
    return bool(_VERSION_NAME.fullmatch(name))
