"""The raw files of a data set, as a value."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pipeline_ops.raw_data.raw_file import RawFile, RefusedFile, new_hash
from pipeline_ops.raw_data.remote import RemoteFolder

RawFolder = Path | RemoteFolder


@dataclasses.dataclass(frozen=True)
class Listing:
    """All files below a folder, sorted by key, and the refused entries, which were not opened."""

    folder: RawFolder
    files: tuple[RawFile, ...]
    refused: tuple[RefusedFile, ...] = ()

    @property
    def digest(self) -> str:
        """A digest over names and contents.

        It is independent of the folder's place and of how the files came there.
        """
        hashed = new_hash()
        for file in self.files:
            hashed.update(f"{file.key}\0{file.digest}\0".encode())  # no file name holds a NUL
        for entry in self.refused:
            hashed.update(f"{entry.key}\0{entry.reason}\0".encode())
        return hashed.hexdigest()
