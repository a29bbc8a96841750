"""Finds missing and damaged files of an artifact, and opens the whole ones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from pipeline_ops.artifacts.manifest import NAME, Manifest, ManifestFile, read_manifest
from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.storage.checksums import compute_checksums, map_in_threads
from pipeline_ops.storage.local_files import open_below, withdraw_folder
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_path import StorePath


def check_files(path: Path | StorePath, manifest: Manifest, files: Iterable[ManifestFile]) -> None:
    """Reads some of an artifact's files. Raises DataError that names the damaged ones."""
    damage = find_damage(path, manifest.model_copy(update={"files": list(files)}), checksums=True)
    if damage:
        raise DataError(
            "; ".join(damage) + ". Remove the artifact that holds it, and run the task again."
        )


def find_damage(path: Path | StorePath, manifest: Manifest, checksums: bool = False) -> list[str]:
    """The problems of an artifact's files: missing, a link, wrong size or wrong checksum.

    The artifact is given by its manifest's path.

    The checksums are computed only if `checksums` is true. In a bucket they never are, because each
    file is compared with its manifest when it is fetched.
    """
    if isinstance(path, StorePath) and not path.is_local:
        return _find_remote_damage(path.parent, manifest)
    folder = Path(str(path)).parent

    def describe(file: ManifestFile) -> str | None:
        try:
            with open_listed(folder, file) as opened:
                if checksums and not file.has_content(compute_checksums(opened)):
                    return f"{_describe(folder, file)} has another checksum than in the manifest"
        except DataError as error:
            return str(error)
        return None

    found = map_in_threads(describe, manifest.files) if checksums else map(describe, manifest.files)
    return [problem for problem in found if problem]


def has_damage(manifest: StorePath) -> bool:
    """Returns whether an artifact is there and is damaged, by its manifest's path."""
    if not manifest.exists():
        return False
    try:
        return bool(find_damage(manifest, read_manifest(manifest)))
    except DataError:
        return True


def _find_remote_damage(folder: StorePath, manifest: Manifest) -> list[str]:
    """The missing files and the wrong sizes of an artifact in a bucket, from listings alone."""
    artifacts = open_root(str(folder).rpartition("/")[0], folder.options)
    found = dict[str, int]()
    places = {file.stored_at or f"{folder.name}/{file.path}" for file in manifest.files}
    for name in {place.partition("/")[0] for place in places}:
        found |= {f"{name}/{each.name}": each.num_bytes for each in (artifacts / name).walk()}
    problems = []
    for file in manifest.files:
        place = file.stored_at or f"{folder.name}/{file.path}"
        if place not in found:
            problems.append(f"{artifacts / place} is missing")
        elif found[place] != file.num_bytes:
            problems.append(
                f"{artifacts / place} has {found[place]} bytes, but {file.num_bytes} in the "
                "manifest"
            )
    return problems


def withdraw_artifact(folder: StorePath) -> None:
    """Removes the manifest of a damaged artifact.

    Newer artifacts may refer to its whole files, which stay until it is made again.
    """
    if folder.is_local:
        withdraw_folder(folder.local, NAME)
    else:
        (folder / NAME).remove()


@contextlib.contextmanager
def open_listed(folder: Path, file: ManifestFile) -> Iterator[IO[bytes]]:
    """Opens one file of an artifact in a folder without following links.

    A referenced file is opened below the folder that holds the artifacts of the job.

    Raises:
      DataError: it is missing, a link, or its size differs from the manifest.
      MachineError: it cannot be read.
    """
    root, path = (folder.parent, file.stored_at) if file.stored_at else (folder, file.path)
    name = _describe(folder, file)
    try:
        with open_below(root, path) as opened:
            num_bytes = os.fstat(opened.fileno()).st_size
            if num_bytes != file.num_bytes:
                raise DataError(
                    f"{name} has {num_bytes} bytes, but {file.num_bytes} in the manifest"
                )
            yield opened
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{name} is missing") from None
    except OSError as error:
        raise MachineError(
            f"{name} cannot be read: {error.strerror}. Repair the disk, then retry."
        ) from error


def _describe(folder: Path, file: ManifestFile) -> str:
    """The path of a file for messages. For a reference, the manifest that lists it is added."""
    path = file.locate(folder)
    return f"{path} (referenced by {folder / NAME})" if file.stored_at else str(path)
