"""A model store in an object store, `s3://bucket/models/digits`, for the registry.

There are no renames and no locks. The only tool is a put that is refused if the object already
exists (`If-None-Match: *`):

    claims/<number>.json     the publisher that is about to fill a number; never given back, so
                             that no number is used twice
    <number>/manifest.json   put last: the version exists. An empty one means that the number
                             was given up for good

A publisher that was killed leaves a claim and files, but no manifest. The next publisher gives the
number up: it puts the empty manifest, and only then removes the files. If the first publisher is
still alive, its own manifest is refused, so it notices. A wrong guess therefore costs a second try,
and never leaves a half version.

TensorFlow Serving must not poll such a place, because it takes every number for a version. It gets
a fetched copy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import fsspec

from pipeline_ops.artifacts.manifest import NAME, SIGNATURE, find_damage, parse_manifest
from pipeline_ops.errors import ConfigError, DataError, MachineError
from pipeline_ops.registry.model_store import (
    MAX_RECORD_BYTES,
    PUBLISH_SECONDS,
    Fill,
    is_version_name,
)
from pipeline_ops.storage.atomic import exclusive_lock, remove_own, staging_folder, write_whole
from pipeline_ops.storage.object_store import file_system, translated
from pipeline_ops.system.processes import ProcessIdentity

_CLAIMS = "claims"
_CLAIM = re.compile(f"{_CLAIMS}/[1-9][0-9]{{0,9}}\\.json")
_ABANDONED_SECONDS = 3600.0
"""The age after which a claim of another host counts as abandoned."""


@dataclasses.dataclass(frozen=True)
class VersionLease:
    """The publisher that is about to fill a number, and its content."""

    owner: str
    process: ProcessIdentity

    def to_json(self) -> bytes:
        return json.dumps(
            {"owner": self.owner, "process": self.process.to_json()}, indent=2
        ).encode()

    @classmethod
    def parse(cls, content: bytes | DataError) -> VersionLease:
        """Parses a claim. An invalid one still takes the number, for an unknown process."""
        try:
            if isinstance(content, DataError) or len(content) > MAX_RECORD_BYTES:
                raise ValueError("not a claim")
            value = json.loads(content)
            return cls(str(value["owner"]), ProcessIdentity.from_json(value["process"]))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return cls("", ProcessIdentity("unknown", 1, 0))

    def is_abandoned(self, age_seconds: float) -> bool:
        """Returns whether the publisher is gone.

        The process is checked on this host. For another host, only the claim's age is known.
        """
        if self.process.host == socket.gethostname():
            return not self.process.is_alive()
        return age_seconds > _ABANDONED_SECONDS


@dataclasses.dataclass(frozen=True)
class ObjectModelStore:
    """A place in an object store with the guarantees of `model_store.ModelStore`."""

    place: str

    @functools.cached_property
    def _files(self) -> fsspec.AbstractFileSystem:
        return file_system(self.place)

    def numbers(self) -> list[int]:
        return _published(self._sizes())

    def uri(self, number: int) -> str:
        return f"{self.place}/{number}"

    def manifest(self, number: int) -> bytes | None:
        try:
            return self._get(f"{number}/{NAME}") or None
        except FileNotFoundError:
            return None

    def signature(self, number: int) -> bytes | None:
        try:
            return self._get(f"{number}/{SIGNATURE}")
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def publishing(self) -> Iterator[None]:
        """Gives up abandoned numbers.

        No process can lock an object store. The claims decide which publisher is first.
        """
        sizes = self._sizes()
        for number, claim in _pending(sizes, self._claims(sizes)).items():
            age_seconds = (
                time.time() - self._files.modified(self._path(_claim_name(number))).timestamp()
            )
            if claim.is_abandoned(age_seconds):
                self._give_up(number)
        for number in _given_up(sizes):
            self._remove_files(number)
        yield

    def add(self, at_least: int, owner: str, fill: Fill) -> int:
        number, is_mine = self._claim(
            at_least, VersionLease(owner, ProcessIdentity.of(os.getpid()))
        )
        if is_mine:
            try:
                self._upload(number, fill)
            except BaseException:
                self._give_up(number)
                raise
        return number

    def fetch(self, number: int, cache: Path) -> Path:
        content = self.manifest(number)
        if content is None:
            raise DataError(f"{self.uri(number)}: there is no such version")
        folder = cache / str(number)
        with exclusive_lock(
            cache / f".{number}.lock",
            f"the local copy of {self.uri(number)}",
            wait_seconds=PUBLISH_SECONDS,
        ):
            if not (folder / NAME).exists() or (folder / NAME).read_bytes() != content:
                remove_own(folder)
                with staging_folder(folder) as staging:
                    self._download(number, content, staging)
                self._forget_removed(cache)
        return folder

    def _forget_removed(self, cache: Path) -> None:
        """Removes local copies of versions that no longer exist here."""
        there = {str(number) for number in self.numbers()}
        for copy in cache.iterdir():
            if is_version_name(copy.name) and copy.name not in there:
                remove_own(copy)

    def remove(self, number: int) -> None:
        """Empties the manifest, then removes the files.

        The claim stays, so that the number is not used again.
        """
        with translated(self.place):
            self._files.pipe_file(self._path(f"{number}/{NAME}"), b"")
        self._remove_files(number)

    def records(self, folder: str) -> list[str]:
        return sorted(name.removeprefix(f"{folder}/") for name in self._sizes(folder))

    def read(self, folder: str, names: Sequence[str]) -> list[bytes | DataError]:
        paths = [self._path(f"{folder}/{name}") for name in names]
        with translated(self.place):
            contents = self._files.cat(paths, on_error="return") if paths else {}
        return [
            self._record(f"{self.place}/{folder}/{name}", contents[path])
            for name, path in zip(names, paths, strict=True)
        ]

    def _record(self, place: str, content: bytes | Exception) -> bytes | DataError:
        if isinstance(content, FileNotFoundError):
            return DataError(f"{place} can't be read: it is gone")
        with translated(self.place):
            if isinstance(content, Exception):
                raise content
        return content

    def create(self, folder: str, name: str, content: bytes) -> None:
        self._create(f"{folder}/{name}", content)

    def _claim(self, at_least: int, mine: VersionLease) -> tuple[int, bool]:
        """Returns a number, and whether this publisher has to fill it.

        If the same model was published in the meantime, its number is returned. Claims are made in
        order without a gap. If another publisher makes a claim between our listing and our claim,
        it takes the number that we would take, and we list again.
        """
        while True:
            sizes = self._sizes()
            claims, published = self._claims(sizes), _published(sizes)
            same = [number for number, claim in claims.items() if claim.owner == mine.owner]
            if done := [number for number in same if number in published]:
                return done[0], False
            if pending := _pending(sizes, claims).keys() & same:
                other = claims[min(pending)].process
                raise MachineError(
                    f"{self.uri(min(pending))}: process {other.pid} on {other.host} is publishing "
                    "the same model right now; wait for it, or end it, and retry"
                )
            number = max(at_least, 1 + max(claims, default=0), 1 + max(published, default=0))
            with contextlib.suppress(FileExistsError):
                self._create(_claim_name(number), mine.to_json())
                self._refuse_unconditional(number, mine)
                return number, True

    def _refuse_unconditional(self, number: int, mine: VersionLease) -> None:
        """Checks that the store obeys the condition.

        Some stores accept it and ignore it. There, two publishers would overwrite each other.
        """
        try:
            self._create(_claim_name(number), mine.to_json())
        except FileExistsError:
            return
        raise ConfigError(
            f"{self.place}: this store ignores If-None-Match, "
            "so it can't hold a registry; use another one"
        )

    def _upload(self, number: int, fill: Fill) -> None:
        with tempfile.TemporaryDirectory(prefix="trainyard-version-") as made:
            folder = Path(made)
            fill(folder, number)
            content = (folder / NAME).read_bytes()
            signature = [SIGNATURE] if (folder / SIGNATURE).exists() else []
            for path in [
                *(file.path for file in parse_manifest(content, self.uri(number)).files),
                *signature,
            ]:
                with translated(self.place):
                    self._files.put_file(str(folder / path), self._path(f"{number}/{path}"))
            try:
                self._create(f"{number}/{NAME}", content)
            except FileExistsError:
                raise MachineError(
                    f"{self.uri(number)}: another publisher took this one for dead, "
                    "and gave its number up; try again"
                ) from None

    def _download(self, number: int, manifest: bytes, folder: Path) -> None:
        parsed, sizes = (
            parse_manifest(manifest, f"{self.uri(number)}/{NAME}"),
            self._sizes(str(number)),
        )
        for file in parsed.files:
            if sizes.get(f"{number}/{file.path}") != file.num_bytes:
                raise DataError(
                    f"{self.uri(number)}/{file.path} has another size than the manifest says; "
                    "publish the model again"
                )
            target = folder / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            with translated(self.place):
                self._files.get_file(self._path(f"{number}/{file.path}"), str(target))
        if damage := find_damage(folder / NAME, parsed, checksums=True):
            raise DataError(f"{self.uri(number)}: {damage[0]}; publish the model again")
        write_whole(folder / NAME, manifest)

    def _give_up(self, number: int) -> None:
        with contextlib.suppress(FileExistsError):  # its owner is alive and was faster
            self._create(f"{number}/{NAME}", b"")
            self._remove_files(number)

    def _remove_files(self, number: int) -> None:
        """Removes all files but the manifest, which marks them as unnecessary."""
        for name in self._sizes(str(number)):
            if not _is_manifest(name):
                with translated(self.place), contextlib.suppress(FileNotFoundError):
                    self._files.rm_file(self._path(name))

    def _claims(self, sizes: dict[str, int]) -> dict[int, VersionLease]:
        names = [name.removeprefix(f"{_CLAIMS}/") for name in sizes if _CLAIM.fullmatch(name)]
        return {
            int(Path(name).stem): VersionLease.parse(content)
            for name, content in zip(names, self.read(_CLAIMS, names), strict=True)
        }

    def _sizes(self, below: str = "") -> dict[str, int]:
        """Every object's size in bytes, by its name below the place, from one listing."""
        root = self._path("")
        with self._in_a_bucket():
            found = self._files.find(f"{root}{below}", detail=True)
        # After an empty listing, s3fs asks for the place itself, and may return a new folder.
        return {
            path.removeprefix(root): entry["size"]
            for path, entry in found.items()
            if entry["type"] == "file"
        }

    def _path(self, name: str) -> str:
        """The path of an object as the driver writes it."""
        return f"{self.place.partition('://')[2].rstrip('/')}/{name}"

    def _get(self, name: str) -> bytes:
        with translated(self.place):
            return self._files.cat_file(self._path(name))

    def _create(self, name: str, content: bytes) -> None:
        """Creates an object. Raises FileExistsError if it already exists."""
        with self._in_a_bucket():
            self._files.pipe_file(self._path(name), content, mode="create")

    @contextlib.contextmanager
    def _in_a_bucket(self) -> Iterator[None]:
        """Translates the errors of calls that need no object. Only the bucket can be missing."""
        try:
            with translated(self.place):
                yield
        except FileNotFoundError as error:
            raise ConfigError(
                f"{self.place}: {error}; make the bucket, or name another one"
            ) from None


def _claim_name(number: int) -> str:
    return f"{_CLAIMS}/{number}.json"


def _is_manifest(name: str) -> bool:
    number, _, rest = name.partition("/")
    return is_version_name(number) and rest == NAME


def _published(sizes: Mapping[str, int]) -> list[int]:
    return sorted(
        int(name.split("/")[0]) for name, size in sizes.items() if _is_manifest(name) and size
    )


def _pending(
    sizes: Mapping[str, int], claims: Mapping[int, VersionLease]
) -> dict[int, VersionLease]:
    """The claims that are neither published nor given up."""
    return {number: claim for number, claim in claims.items() if f"{number}/{NAME}" not in sizes}


def _given_up(sizes: Mapping[str, int]) -> list[int]:
    """The given-up numbers that still have files."""
    empty = {name.split("/")[0] for name, size in sizes.items() if _is_manifest(name) and not size}
    return sorted(
        {
            int(name.split("/")[0])
            for name in sizes
            if name.split("/")[0] in empty and not _is_manifest(name)
        }
    )
