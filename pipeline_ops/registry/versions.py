"""The versions of one model: whole or absent, and one publisher at a time.

    <model>/<number>/    saved_model.pb, variables/, ... and manifest.json, which lists them

A folder and a bucket keep the same promises. They differ in how a version appears:

- In a folder, by one rename, under the lock `.publish.lock`. It disappears by a rename, too.
- In a bucket, which has no renames, by its manifest, which is created last, under a lease:

    lease/                   the records of the lease (`system/lease.py`)
    <number>/publisher.json  created first: the number belongs to one publisher for good
    <number>/manifest.json   created last, by the lease: the version exists. An empty one means that
                             the number was given up or its version removed, for good

  A publisher that was killed, cut off or paused for long loses the lease, and may still be running.
  It writes below its own number only, and the lease refuses its manifest. The next publisher gives
  the number up: it creates the empty manifest, and then removes the files. If the guess is wrong,
  and the manifest exists already, the version stays. If the empty one was first, the slow publisher
  is refused and tries again.

TensorFlow Serving must poll neither, because it serves the highest number. It polls a folder of
copies (`polled_folder.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from pipeline_ops.config.train import InputOptions
from pipeline_ops.contract.manifest import (
    MAX_BYTES,
    NAME,
    Input,
    Manifest,
    ManifestFile,
    check_files,
    fetch_file,
    parse_manifest,
)
from pipeline_ops.errors import DataError, MachineError, TrainyardError
from pipeline_ops.job.local_inputs import open_host_cache
from pipeline_ops.storage.local_files import (
    format_json,
    remove_staging_folders,
    staging_folder,
    write_atomically,
)
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_path import Entry, StorePath
from pipeline_ops.system.lease import Lease, hold_lease

PUBLISH_SECONDS = 600.0
"""The maximum wait of a publisher for another one, which takes as long as the copy of a model."""
_PUBLISHER = "publisher.json"
_NUMBER = re.compile("[1-9][0-9]{0,9}")

VersionWriter = Callable[[Path, int], None]
"""Writes a version's files, and its manifest last, into an empty local folder.

The arguments are the folder and the version's number.
"""


@dataclasses.dataclass(frozen=True)
class Version:
    """One published model, by its folder."""

    path: StorePath

    @property
    def number(self) -> int:
        return int(self.path.name)

    @property
    def folder(self) -> str:
        """The version's path or URI."""
        return str(self.path)

    @property
    def uri(self) -> str:
        """The manifest's path or URI."""
        return f"{self.path}/{NAME}"

    def read_manifest(self) -> Manifest:
        """Returns the manifest. Raises DataError if it is gone or invalid."""
        return _parse_version(_read_manifest_bytes(self.path), self.uri)

    def fetch(self) -> Path:
        """Returns a local folder that holds the version: its own, or a copy in the host's cache.

        Raises DataError if a file does not match the manifest.
        """
        folder, manifest = _fetch_folder(self.path), self.read_manifest()
        check_files(folder / NAME, manifest, manifest.files)
        return folder

    def copy_to(self, target: Path) -> None:
        """Copies the version into an empty local folder.

        Each file is checked during the copy, so that no file can change after its check. Raises
        DataError if one does not match the manifest, and MachineError if the disk failed.
        """
        _copy(self.path, _read_manifest_bytes(self.path), target)

    def remove(self) -> None:
        """Hides the version from readers, and then removes its files. A missing one is ignored."""
        if self.path.is_local:
            self.path.remove_tree()
        elif (self.path / NAME).exists():
            (self.path / NAME).write(b"")  # stays, so that the number is not used again
            _remove_files(self.path)  # after a kill, the next publisher does it


def list_numbers(model: StorePath) -> list[int]:
    """Lists the numbers of the present versions, in order."""
    if model.is_local:
        names = {each.name for each in model.list_folder() if each.is_folder}
    else:
        names = _find_whole(model.walk())
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def list_names(folder: StorePath) -> list[str]:
    """Lists the entries of a folder. In a local one, links are among them: they take a name."""
    if not folder.is_local:
        return [entry.name for entry in folder.list_folder()]
    return sorted(os.listdir(folder.local)) if folder.local.is_dir() else []


def read_manifests(versions: Sequence[Version]) -> list[Manifest | DataError]:
    """Reads several manifests at once. A DataError takes the place of an unreadable one."""

    def read(version: Version) -> Manifest | DataError:
        try:
            return version.read_manifest()
        except DataError as error:
            return error

    return map_requests(read, versions)


def fetch_version(entry: Input) -> Input:
    """Returns a version among a job's inputs with the URI of a local copy if it is in a bucket.

    Raises DataError if the version is gone or damaged in the bucket.
    """
    manifest = open_path(entry.uri)
    if manifest.is_local:
        return entry
    return entry.model_copy(update={"uri": str(_fetch_folder(manifest.parent) / NAME)})


@contextlib.contextmanager
def hold_publication(model: StorePath) -> Iterator[Lease]:
    """Holds the right to add a version, and removes the leftovers of killed publishers.

    Raises MachineError if another process publishes for more than PUBLISH_SECONDS.
    """
    lock = model / (".publish.lock" if model.is_local else "lease")
    with hold_lease(lock, f"the right to publish in {model}", PUBLISH_SECONDS) as lease:
        if model.is_local:
            remove_staging_folders(model.local)
        else:
            entries = model.walk()
            parts = (entry.name.partition("/") for entry in entries)
            started = {name for name, _, path in parts if path != NAME and _NUMBER.fullmatch(name)}
            for number in sorted(started - _find_whole(entries)):
                lease.check()
                _give_up(model / number)
        yield lease


def add_version(model: StorePath, lease: Lease, at_least: int, fill: VersionWriter) -> Version:
    """Adds a version with the next number that was never used.

    Raises MachineError if the store failed, or this process was paused or cut off for so long that
    another one publishes now. A retry finds the version if it was published all the same.
    """
    used = (int(name) for name in list_names(model) if _NUMBER.fullmatch(name))
    number = max(at_least, 1 + max(used, default=0))
    if not model.is_local:
        return _add_to_bucket(model, lease, number, fill)
    with staging_folder(model.local / str(number)) as staging:
        fill(staging, number)
    return Version(model / str(number))


def _parse_version(content: bytes, uri: str) -> Manifest:
    """Parses a manifest. Raises DataError if it is invalid, or references a file elsewhere.

    A version holds all of its files, so the checksums cover everything that a server loads.
    """
    manifest = parse_manifest(content, uri)
    if file := next((file for file in manifest.files if file.stored_at), None):
        raise DataError(
            f"{uri}: {file.path} is stored at {file.stored_at}, but a version holds all of its "
            "files itself. Publish the model again."
        )
    return manifest


def _read_manifest_bytes(version: StorePath) -> bytes:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if content := (version / NAME).read(MAX_BYTES):
            return content
    raise DataError(
        f"{version / NAME}: there is no such manifest. "
        "Remove the version, and run the task that makes it again."
    )


def _fetch_folder(version: StorePath) -> Path:
    """Returns the version's own folder, or that of a checked copy in the host's cache."""
    if version.is_local:
        return version.local
    content = _read_manifest_bytes(version)
    digest = hashlib.sha256(content).hexdigest()
    cache = open_host_cache(InputOptions())
    return cache.get_or_create("version", digest, functools.partial(_copy, version, content))


def _copy(version: StorePath, manifest: bytes, target: Path) -> None:
    def copy(file: ManifestFile) -> None:
        remedy = "Publish the model again."
        fetch_file(version / file.path, file, target / file.path, remedy, DataError)

    map_requests(copy, _parse_version(manifest, str(version / NAME)).files)
    write_atomically(target / NAME, manifest)


def _find_whole(entries: Iterable[Entry]) -> set[str]:
    """Returns the numbers, as text, that have a manifest in a bucket."""
    manifests = (entry.name for entry in entries if entry.num_bytes)
    return {name.removesuffix(f"/{NAME}") for name in manifests if name.endswith(f"/{NAME}")}


def _give_up(version: StorePath) -> None:
    """Ends a number for good, unless its version exists."""
    with contextlib.suppress(FileExistsError):
        (version / NAME).create(b"")
        _remove_files(version)


def _remove_files(version: StorePath) -> None:
    """Removes all files but the manifest, which marks the number as used."""
    for entry in version.walk():
        if entry.name != NAME:
            (version / entry.name).remove()


def _add_to_bucket(model: StorePath, lease: Lease, number: int, fill: VersionWriter) -> Version:
    own_record = format_json({"publisher": secrets.token_hex(16)})
    while True:
        try:
            (model / f"{number}/{_PUBLISHER}").create(own_record)
            break
        except FileExistsError:  # of a publisher that has lost the lease
            number += 1
    version = model / str(number)
    try:
        with tempfile.TemporaryDirectory(prefix="trainyard-version-") as made:
            fill(Path(made), number)
            _upload(Path(made), version, lease)
    except BaseException:
        with contextlib.suppress(TrainyardError):  # the next publisher does it
            _give_up(version)
        raise
    return Version(version)


def _upload(made: Path, version: StorePath, lease: Lease) -> None:
    content = (made / NAME).read_bytes()
    files = _parse_version(content, str(version / NAME)).files
    map_requests(lambda file: (version / file.path).upload(made / file.path), files)
    try:
        lease.commit(version / NAME, content)
    except FileExistsError:
        raise MachineError(
            f"{version}: this publisher was so slow that another one has given up its number. "
            "Retry."
        ) from None
