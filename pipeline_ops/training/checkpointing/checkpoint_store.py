"""Copies of checkpoints in the store, for a host that lacks them or has lost its disk.

They exist if the storage root is a bucket. Each is a small manifest, which is written last, and the
files that it lists:

    checkpoint-00000003-000000200.json    token and step, and the files with their checksums
    00000003/<sha-256>.npz                a file, below the token of the job's lease

The newest one is that of the highest token and, among these, of the highest step. So a launcher
that was paused, and goes on after another one has taken over, cannot decide where a later gang
resumes. Such a launcher removes only checkpoints of its own token, or of an earlier one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, Field

from pipeline_ops.errors import DataError
from pipeline_ops.storage.checksums import Checksums, compute_checksums
from pipeline_ops.storage.parsing import parse_json_as
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.locks import exclusive_lock

_STEM = re.compile(r"checkpoint-(?:([0-9]{8})-)?([0-9]{9})")
_OBJECT = re.compile(r"([0-9]{8})/[0-9a-f]{64}\.npz")
_LOCK_SECONDS = 3600.0
_FileName = Annotated[str, Field(pattern=r"^(checkpoint-[0-9-]{9,18}|best-[0-9]{5})\.npz$")]


class CheckpointId(NamedTuple):
    """A checkpoint: the token of the lease under which it was made, and its step.

    The token is 0 if the storage root is a folder.
    """

    token: int
    step: int

    @classmethod
    def parse(cls, stem: str) -> CheckpointId | None:
        """Parses the name of a file without its ending. Returns None for another file."""
        match = _STEM.fullmatch(stem)
        return cls(int(match[1] or 0), int(match[2])) if match else None

    @property
    def stem(self) -> str:
        token = f"{self.token:08d}-" if self.token else ""
        return f"checkpoint-{token}{self.step:09d}"


class CheckpointManifest(BaseModel):
    """A checkpoint in the store: its files, by their names on a host."""

    files: dict[_FileName, Checksums]


@dataclasses.dataclass(frozen=True)
class CheckpointStore:
    """The checkpoints of one artifact in the store.

    Args:
      folder: The work folder of the artifact.
      token: The token of the job's lease.
      keep: The number of newest checkpoints to keep.
      is_exchanged: Whether a gang on several disks exchanges its checkpoints through the store.
        Then only those in the store count, because all workers must read the same ones.
    """

    folder: StorePath
    token: int
    keep: int
    is_exchanged: bool

    def list_ids(self) -> list[CheckpointId]:
        """The complete checkpoints. Makes one request."""
        return _parse_ids(entry.name for entry in self.folder.list_folder())

    def download(self, checkpoint: CheckpointId, target: Path) -> None:
        """Brings the files of a checkpoint into a folder. Files that are there already stay.

        The first of a host's workers does it, and the others wait. Raises FileNotFoundError or
        DataError if the manifest or a file is missing or damaged.
        """
        lock = target / ".download.lock"
        with exclusive_lock(lock, f"the download of {checkpoint.stem}", _LOCK_SECONDS):
            for name, expected in self._read_manifest(checkpoint).files.items():
                file = target / name
                if not (file.exists() and _compute_checksums(file) == expected):
                    source = self.folder / _name_object(checkpoint.token, expected)
                    _download(source, expected, file)

    def upload(self, step: int, files: Mapping[str, Path]) -> None:
        """Stores a checkpoint of this token, and removes those that it replaces.

        `files` are its files on this host, by the names that they get on another one. After an
        error, the checkpoints before are still there.
        """
        names = {entry.name for entry in self.folder.walk()}
        checksums = {name: _compute_checksums(file) for name, file in files.items()}
        for name, found in checksums.items():
            key = _name_object(self.token, found)
            if key not in names:
                (self.folder / key).upload(files[name])
        manifest = CheckpointManifest(files=checksums)
        checkpoint = CheckpointId(self.token, step)
        self._get_path(checkpoint).write(manifest.model_dump_json().encode())
        self._remove_replaced(checkpoint, names)

    def _remove_replaced(self, newest: CheckpointId, names: Collection[str]) -> None:
        """Removes older checkpoints, then the files that belong to none.

        A checkpoint of a later step is damaged, or the training has left it by a rollback. `names`
        are those in the store before the newest checkpoint.
        """
        found = {newest, *(each for each in _parse_ids(names) if each.token <= self.token)}
        abandoned = {each for each in found if each > newest or each.step > newest.step}
        kept = sorted(found - abandoned, reverse=True)[: self.keep]
        for checkpoint in found - set(kept):
            self._get_path(checkpoint).remove()
        used = set()
        for checkpoint in kept:
            with contextlib.suppress(FileNotFoundError, DataError):  # its manifest is gone, damaged
                files = self._read_manifest(checkpoint).files.values()
                used |= {_name_object(checkpoint.token, checksums) for checksums in files}
        for name in names:
            match = _OBJECT.fullmatch(name)
            if match and int(match[1]) <= self.token and name not in used:
                (self.folder / name).remove()

    def _read_manifest(self, checkpoint: CheckpointId) -> CheckpointManifest:
        path = self._get_path(checkpoint)
        return parse_json_as(CheckpointManifest, path.read(), path)

    def _get_path(self, checkpoint: CheckpointId) -> StorePath:
        return self.folder / f"{checkpoint.stem}.json"


def _parse_ids(names: Iterable[str]) -> list[CheckpointId]:
    stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return [found for found in map(CheckpointId.parse, stems) if found]


def _name_object(token: int, checksums: Checksums) -> str:
    return f"{token:08d}/{checksums.sha256}.npz"


def _download(source: StorePath, expected: Checksums, file: Path) -> None:
    """Downloads a file under another name, and gives it its own if its content is as expected."""
    temporary = file.with_name(f".{file.name}.download")
    temporary.unlink(missing_ok=True)
    found = source.download(temporary, expected.num_bytes)
    if found != expected:
        temporary.unlink()
        raise DataError(
            f"{source} has {found.num_bytes} bytes with the checksum {found.crc32c}, "
            f"but its manifest lists {expected.num_bytes} with {expected.crc32c}"
        )
    temporary.replace(file)


def _compute_checksums(file: Path) -> Checksums:
    with open(file, "rb") as opened:
        return compute_checksums(opened)
