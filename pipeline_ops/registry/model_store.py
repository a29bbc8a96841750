"""The place of one model's versions: a folder whose versions are whole or not there. `registry.py` says what they mean.

Two kinds keep the same promises: a local folder (`local_model_store.py`), by renames, links and a lock, and a place in an object store
(`object_model_store.py`), by conditional puts. Small records lie beside the versions. Each is written once: of two writers of the same
record, one is refused.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from pipeline_ops.errors import DataError

MAX_RECORD_BYTES = 4 << 20
"""Of a record beside the versions."""
PUBLISH_SECONDS = 600.0
"""How long a publisher waits for another one; one takes as long as the copy of a model."""
_VERSION_NAME = re.compile("[1-9][0-9]{0,9}")
Fill = Callable[[Path, int], None]
"""Writes a version's files, its manifest among them, into an empty local folder; it is told folder and number."""


class ModelStore(Protocol):
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


def is_version_name(name: str) -> bool:
    return bool(_VERSION_NAME.fullmatch(name))
