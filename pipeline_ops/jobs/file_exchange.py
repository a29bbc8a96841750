"""Files that one process of a gang leaves in the bucket for another one, on another host.

They lie in a folder of their own. Its index is written last and has the checksum of each file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.checksums import Checksums, compute_checksums
from pipeline_ops.storage.parsing import parse_json_as
from pipeline_ops.storage.safe_paths import RelativePath
from pipeline_ops.storage.snapshot import map_requests
from pipeline_ops.storage.store_path import StorePath

_INDEX = "index.json"
_MAX_INDEX_BYTES = 64 << 20


class _Index(BaseModel):
    """The files of a folder, by their paths in it."""

    model_config = ConfigDict(frozen=True)

    files: dict[RelativePath, Checksums]


def store_files(folder: Path, paths: Iterable[str], target: StorePath) -> None:
    """Copies files of a folder to the store. Raises MachineError or ConfigError if it fails."""

    def store(path: str) -> tuple[str, Checksums]:
        with open(folder / path, "rb") as file:
            checksums = compute_checksums(file)
        (target / path).upload(folder / path)
        return path, checksums

    index = _Index(files=dict(map_requests(store, paths)))
    (target / _INDEX).write(index.model_dump_json().encode())


def fetch_files(source: StorePath, folder: Path, only: Collection[str] | None = None) -> None:
    """Copies what `store_files` has stored into a folder, and replaces files there.

    Args:
      source: the folder in the store.
      folder: the folder on this host.
      only: the paths to copy; None for all.

    Raises:
      MachineError: a file is missing or damaged, or the store or the disk failed.
    """

    def fetch(path: str) -> None:
        (folder / path).unlink(missing_ok=True)
        expected = index.files[path]
        if (source / path).download(folder / path, expected.num_bytes) != expected:
            raise MachineError(f"{source / path} was damaged on its way. Retry.")

    try:
        index = parse_json_as(_Index, (source / _INDEX).read(_MAX_INDEX_BYTES), source / _INDEX)
        map_requests(fetch, [path for path in index.files if only is None or path in only])
    except FileNotFoundError as error:
        raise MachineError(f"{source} is not complete: {error}. Retry.") from None
