"""The manifest: the last file of an artifact, and the proof that the artifact is whole.

An artifact is a folder with a `manifest.json`. It is immutable once the manifest exists. Its URI is
the only value that passes from one task to the next. A manifest may come from anyone who can write
to the storage. Therefore its size is limited, its paths stay below its folder, and its files are
opened without following links.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.errors import ConfigError, DataError, MachineError
from pipeline_ops.storage.atomic import write_json
from pipeline_ops.storage.checksums import Checksums, checksums_of, map_in_threads
from pipeline_ops.storage.digest import digest_of
from pipeline_ops.storage.safe_paths import RelativePath, UnsafePath, open_below, read_below

NAME = "manifest.json"
SIGNATURE = f"{NAME}.minisig"
"""The signature of a published version. The manifest lists every other file next to it."""
MAX_BYTES = 64 << 20
MAX_FILES = 200_000
STORES = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "hdfs")
"""Schemes of the object stores that may hold an artifact.

Because of this list, a manifest or a record can't make this process send requests to any web
server.
"""


def _not_the_manifest(path: str) -> str:
    if path in (NAME, SIGNATURE):
        raise UnsafePath(f"{path} can't be among the files that a manifest lists")
    return path


class ManifestFile(BaseModel):
    """One file of an artifact. `num_examples` is for shards. Old manifests have no SHA-256."""

    model_config = ConfigDict(frozen=True)

    path: Annotated[RelativePath, AfterValidator(_not_the_manifest)]
    num_bytes: int = Field(ge=0, lt=1 << 63)
    crc32c: str = Field(pattern=r"^[0-9a-f]{8}$")
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    num_examples: int | None = Field(default=None, ge=0, lt=1 << 63)

    def has_content(self, found: Checksums) -> bool:
        """Compares the size and the best checksum that the manifest has."""
        if found.num_bytes != self.num_bytes:
            return False
        return found.crc32c == self.crc32c if self.sha256 is None else found.sha256 == self.sha256


class Input(BaseModel):
    """An artifact that this one was made from."""

    model_config = ConfigDict(frozen=True)

    uri: str
    digest: str


class Manifest(BaseModel):
    """The description of an artifact: its identity, its inputs and its results.

    `job` names the job that made it. `figures` are the job's own results, as JSON.
    """

    model_config = ConfigDict(frozen=True)

    job: str
    pipeline: str
    fingerprint: Fingerprint
    fingerprint_digest: str
    inputs: dict[str, Input] = {}
    seeds: dict[str, int] = {}
    files: list[ManifestFile] = Field(max_length=MAX_FILES)
    figures: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_paths(self) -> Manifest:
        """Checks that each path is listed once, and that no file is the folder of another file."""
        paths = {file.path for file in self.files}
        if len(paths) < len(self.files):
            raise ValueError("files: a path is listed twice")
        if folder := next(
            (each for path in paths for each in map(str, Path(path).parents) if each in paths), None
        ):
            raise ValueError(f"files: {folder} is listed as a file and as a folder")
        return self

    @property
    def digest(self) -> str:
        """32 hex digits over names, sizes and checksums of the files.

        Equal contents have equal digests.
        """
        return digest_of(
            [file.model_dump(exclude=None if file.sha256 else {"sha256"}) for file in self.files]
        )

    def file(self, path: str) -> ManifestFile:
        """Raises KeyError."""
        return {file.path: file for file in self.files}[path]


def list_files(
    folder: Path,
    num_examples: dict[str, int] | None = None,
    known: Mapping[str, ManifestFile] | None = None,
) -> list[ManifestFile]:
    """Lists every file below a folder except the manifest, sorted by path, with size and checksums.

    Args:
      folder: the folder.
      num_examples: the number of examples of each shard, by path.
      known: entries of another artifact's manifest, by path. These files are not read again.

    Raises:
      DataError: there is a link among them.
    """
    known = known or {}

    def describe(path: str) -> ManifestFile:
        if path in known:
            return known[path]
        with open_below(folder, path) as file:
            found = checksums_of(file)
        return ManifestFile(
            path=path,
            num_bytes=found.num_bytes,
            crc32c=found.crc32c,
            sha256=found.sha256,
            num_examples=(num_examples or {}).get(path),
        )

    paths = sorted(
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_symlink() or not file.is_dir()
    )
    return map_in_threads(describe, (path for path in paths if path not in (NAME, SIGNATURE)))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Makes a folder an artifact. The manifest is the last file that is written into it."""
    write_json(folder / NAME, manifest.model_dump(mode="json"))


def read_manifest(uri: str | Path) -> Manifest:
    """Reads an artifact's manifest from the manifest's own URI.

    Raises:
      DataError: there is no manifest, or it is invalid.
      ConfigError: the URI is not one of a store.
      MachineError: the manifest can't be read.
    """
    return parse_manifest(read_manifest_bytes(uri), uri)


def read_manifest_bytes(uri: str | Path) -> bytes:
    """Reads a manifest without parsing it, because a signature covers its bytes."""
    try:
        if is_remote(uri):
            return _read_remote(str(uri))
        path = Path(str(uri).removeprefix("file://"))
        return read_below(path.parent, path.name, MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{uri}: there is no such manifest; run the task that makes it again"
        ) from None
    except OSError as error:
        raise MachineError(
            f"{uri} can't be read: {error.strerror}; mend the disk, then retry"
        ) from error


def is_remote(uri: str | Path) -> bool:
    """Returns whether a URI is in an object store, and not in a folder."""
    return "://" in str(uri) and not str(uri).startswith("file://")


def _read_remote(uri: str) -> bytes:
    import fsspec  # here, because the DAG file reads manifests too, and nearly all lie in folders

    if uri.partition("://")[0] not in STORES or "::" in uri:
        raise ConfigError(
            f"{uri[:200]!r} is no place of an artifact; artifacts lie in a folder or in a store: "
            f"{', '.join(STORES)}"
        )
    try:
        with fsspec.open(uri, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except Exception as error:  # every store has its own kinds of errors
        raise MachineError(
            f"{uri} can't be read: {type(error).__name__}: {error}; "
            "check the store and this host's credentials"
        ) from error


def parse_manifest(content: bytes, uri: str | Path) -> Manifest:
    """Parses a manifest. Raises DataError with its origin `uri` if it is invalid."""
    try:
        if len(content) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        return Manifest.model_validate(json.loads(content))
    except ValidationError as error:
        raise DataError(
            f"{uri}: not a manifest of this version of Trainyard: {_first_errors(error)}"
        ) from None
    except (ValueError, RecursionError) as error:  # not JSON, or nested too deeply
        raise DataError(f"{uri}: not a manifest of this version of Trainyard: {error}") from None


def _first_errors(error: ValidationError) -> str:
    """The first errors without the content, which may be that of another file."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    first = "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}" for each in found[:3]
    )
    return first + (f" (and {len(found) - 3} more)" if len(found) > 3 else "")


def read_input(entry: Input) -> Manifest:
    """Reads the manifest of an input.

    Raises:
      DataError: the manifest is gone, or differs from the one that the job was planned with.
    """
    manifest = read_manifest(entry.uri)
    if manifest.digest != entry.digest:
        raise DataError(
            f"{entry.uri}: its digest is {manifest.digest}, but was {entry.digest} when this job "
            "was planned; start a new run"
        )
    return manifest


def refuse_damage(uri: str | Path, manifest: Manifest, files: Iterable[ManifestFile]) -> None:
    """Reads some of an artifact's files. Raises DataError that names the damaged ones."""
    damage = find_damage(uri, manifest.model_copy(update={"files": list(files)}), checksums=True)
    if damage:
        raise DataError(
            "; ".join(damage) + "; remove the artifact, and run the task that makes it again"
        )


def find_damage(uri: str | Path, manifest: Manifest, checksums: bool = False) -> list[str]:
    """The problems of an artifact's files: missing, a link, wrong size or wrong checksum.

    The checksums are computed only if `checksums` is true.
    """
    folder = Path(uri).parent

    def describe(file: ManifestFile) -> str | None:
        try:
            with open_listed(folder, file) as opened:
                if checksums and not file.has_content(checksums_of(opened)):
                    return f"{folder / file.path} has another checksum than the manifest says"
        except DataError as error:
            return str(error)
        return None

    found = map_in_threads(describe, manifest.files) if checksums else map(describe, manifest.files)
    return [problem for problem in found if problem]


@contextlib.contextmanager
def open_listed(folder: Path, file: ManifestFile) -> Iterator[IO[bytes]]:
    """Opens one file of an artifact in a folder without following links.

    Raises:
      DataError: it is missing, a link, or its size differs from the manifest.
      MachineError: it can't be read.
    """
    path = folder / file.path
    try:
        with open_below(folder, file.path) as opened:
            num_bytes = os.fstat(opened.fileno()).st_size
            if num_bytes != file.num_bytes:
                raise DataError(f"{path} has {num_bytes} bytes, the manifest says {file.num_bytes}")
            yield opened
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path} is missing") from None
    except OSError as error:
        raise MachineError(
            f"{path} can't be read: {error.strerror}; mend the disk, then retry"
        ) from error
