"""A model store in a bucket, `s3://bucket/models/digits`, for the registry.

One process at a time adds a version. It holds a lease (`system/lease.py`), which it loses if it is
killed, cut off or paused for long:

    lease/                   the records of this lease
    <number>/publisher.json  created first: the number belongs to one publisher for good
    <number>/manifest.json   created last, by the lease: the version exists. An empty one means that
                             the number was given up or its version removed, for good

A publisher that has lost the lease may still be running. It writes below its own number only, and
the lease refuses its manifest. The next publisher gives the number up: it creates the empty
manifest, and then removes the files. If the guess is wrong, and the manifest exists already, the
version stays. If the empty one was first, the slow publisher is refused and tries again.

TensorFlow Serving must not poll such a URI, because it takes every number for a version. It gets
a fetched copy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline_ops.artifacts.manifest import MAX_BYTES, NAME, SIGNATURE, ManifestFile, fetch_file
from pipeline_ops.config.train import InputOptions
from pipeline_ops.errors import DataError, MachineError, TrainyardError
from pipeline_ops.jobs.local_inputs import open_host_cache
from pipeline_ops.registry.model_store import (
    PUBLISH_SECONDS,
    AddVersion,
    VersionWriter,
    is_version_name,
)
from pipeline_ops.registry.version import parse_version
from pipeline_ops.storage.local_files import UnsafePath, format_json, write_atomically
from pipeline_ops.storage.snapshot import map_requests
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.lease import Lease, hold_lease

_LEASE, _PUBLISHER = "lease", "publisher.json"


@dataclasses.dataclass(frozen=True)
class ObjectModelStore:
    """A folder in a bucket with the guarantees of `model_store.ModelStore`."""

    folder: StorePath

    @property
    def location(self) -> str:
        return str(self.folder)

    def list_numbers(self) -> list[int]:
        return sorted(number for number, sizes in self._list_sizes().items() if sizes.get(NAME))

    def get_uri(self, number: int) -> str:
        return str(self.folder / str(number))

    def read_file(self, number: int, name: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            content = (self.folder / f"{number}/{name}").read(MAX_BYTES)
            return content or None  # an empty manifest gives a number up
        return None

    @contextlib.contextmanager
    def publishing(self) -> Iterator[AddVersion]:
        resource = f"the right to publish in {self.location}"
        with hold_lease(self.folder / _LEASE, resource, PUBLISH_SECONDS) as lease:
            for number, sizes in self._list_sizes().items():
                if not sizes.get(NAME) and sizes.keys() != {NAME}:
                    lease.check()
                    self._give_up(number)
            yield functools.partial(self._add, lease)

    def fetch(self, number: int) -> Path:
        content = self.read_file(number, NAME)
        if content is None:
            raise DataError(f"{self.get_uri(number)}: there is no such version")
        return open_host_cache(InputOptions()).get_or_create(
            "version",
            hashlib.sha256(content).hexdigest(),
            lambda folder: self._download(number, content, folder),
        )

    def remove(self, number: int) -> None:
        """Empties the manifest, which stays so that the number is not used again.

        Then it removes the files. If it is killed, the next publisher removes them.
        """
        manifest = self.folder / f"{number}/{NAME}"
        if manifest.exists():
            manifest.write(b"")
            self._remove_files(number)

    def list_records(self, folder: str) -> list[str]:
        return [entry.name for entry in (self.folder / folder).walk()]

    def read_records(self, folder: str, names: Sequence[str]) -> list[bytes | DataError]:
        places = [self.folder / folder / name for name in names]
        return map_requests(_read_record, places)

    def create_record(self, folder: str, name: str, content: bytes) -> None:
        (self.folder / folder / name).create(content)

    def _add(self, lease: Lease, at_least: int, fill: VersionWriter) -> int:
        number = self._take_number(at_least)
        try:
            with tempfile.TemporaryDirectory(prefix="trainyard-version-") as made:
                fill(Path(made), number)
                self._upload(number, Path(made), lease)
        except BaseException:
            with contextlib.suppress(TrainyardError):  # the next publisher does it
                self._give_up(number)
            raise
        return number

    def _take_number(self, at_least: int) -> int:
        """Returns a number that no publisher has had, and that none will get after this one."""
        number = max(at_least, 1 + max(self._list_sizes(), default=0))
        own_record = format_json({"publisher": secrets.token_hex(16)})
        while True:
            try:
                (self.folder / f"{number}/{_PUBLISHER}").create(own_record)
                return number
            except FileExistsError:  # of a publisher that has lost the lease
                number += 1

    def _upload(self, number: int, made: Path, lease: Lease) -> None:
        content, target = (made / NAME).read_bytes(), self.folder / str(number)
        paths = [file.path for file in parse_version(content, str(target)).files]
        if (made / SIGNATURE).exists():
            paths.append(SIGNATURE)
        map_requests(lambda path: (target / path).upload(made / path), paths)
        try:
            lease.commit(target / NAME, content)
        except FileExistsError:
            raise MachineError(
                f"{target}: this publisher was so slow that another one has given up its number. "
                "Retry."
            ) from None

    def _download(self, number: int, content: bytes, folder: Path) -> None:
        source = self.folder / str(number)

        def download(file: ManifestFile) -> None:
            remedy = "Publish the model again."
            fetch_file(source / file.path, file, folder / file.path, remedy, DataError)

        map_requests(download, parse_version(content, str(source / NAME)).files)
        write_atomically(folder / NAME, content)

    def _give_up(self, number: int) -> None:
        """Ends a number for good, unless its version exists."""
        with contextlib.suppress(FileExistsError):
            (self.folder / f"{number}/{NAME}").create(b"")
            self._remove_files(number)

    def _remove_files(self, number: int) -> None:
        """Removes all files but the manifest, which marks them as unnecessary."""
        folder = self.folder / str(number)
        for entry in folder.walk():
            if entry.name != NAME:
                (folder / entry.name).remove()

    def _list_sizes(self) -> dict[int, dict[str, int]]:
        """The sizes in bytes of the files of each number, by path, from one listing."""
        found = dict[int, dict[str, int]]()
        for entry in self.folder.walk():
            number, _, path = entry.name.partition("/")
            if is_version_name(number):
                found.setdefault(int(number), {})[path] = entry.num_bytes
        return found


def _read_record(place: StorePath) -> bytes | DataError:
    try:
        return place.read()
    except UnsafePath as error:
        return error
    except FileNotFoundError:
        return DataError(f"cannot read {place}: it is gone")
