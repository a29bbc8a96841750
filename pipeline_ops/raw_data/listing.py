"""The raw files of a data set, as a value."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pipeline_ops.raw_data.raw_file import RawFile, RejectedFile, format_digest, new_hash
from pipeline_ops.raw_data.remote import RemoteFolder

RawFolder = Path | RemoteFolder


@dataclasses.dataclass(frozen=True)
class Listing:
    """All files below a folder, sorted by key, and the rejected entries, which were not opened."""

    folder: RawFolder
    files: tuple[RawFile, ...]
    rejected: tuple[RejectedFile, ...] = ()

    @property
    def digest(self) -> str:
        """A digest over names and contents.

        It is independent of the folder's location and of how the files came there.
        """
        hashed = new_hash()
        for file in self.files:
            # No file name holds a NUL.
            hashed.update(f"{file.key}\0{format_digest(file.digest)}\0".encode())
        for entry in self.rejected:
            hashed.update(f"{entry.key}\0{entry.reason}\0".encode())
        return hashed.hexdigest()
