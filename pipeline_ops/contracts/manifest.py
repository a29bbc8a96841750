"""The manifest: the last file of an artifact, and the proof that the artifact is whole.

An artifact is a folder with a `manifest.json`. It is immutable once the manifest is there; its URI is all that passes
from one task to the next.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline_ops.contracts.errors import DataError, MachineError
from pipeline_ops.contracts.files import crc32c_of, write_json
from pipeline_ops.contracts.fingerprint import Fingerprint, digest_of

NAME = "manifest.json"


class ManifestFile(BaseModel):
    """One file of an artifact. `crc32c` is eight hex digits, `num_examples` is for shards."""

    model_config = ConfigDict(frozen=True)

    path: str
    num_bytes: int
    crc32c: str
    num_examples: int | None = None


class Input(BaseModel):
    """An artifact that this one was made from."""

    model_config = ConfigDict(frozen=True)

    uri: str
    digest: str


class Manifest(BaseModel):
    """What an artifact is, what it was made from, and what came out.

    `job` names the job that made it; `figures` are the job's own results, as JSON.
    """

    model_config = ConfigDict(frozen=True)

    job: str
    pipeline: str
    fingerprint: Fingerprint
    fingerprint_digest: str
    inputs: dict[str, Input] = {}
    seeds: dict[str, int] = {}
    files: list[ManifestFile]
    figures: dict[str, Any] = {}

    @property
    def digest(self) -> str:
        """32 hex digits over names, sizes and checksums of the files: equal contents have equal digests."""
        return digest_of([file.model_dump() for file in self.files])

    def file(self, path: str) -> ManifestFile:
        """Raises KeyError."""
        return {file.path: file for file in self.files}[path]


def list_files(folder: Path, num_examples: dict[str, int] | None = None, known: Mapping[str, ManifestFile] | None = None) -> list[ManifestFile]:
    """Every file below a folder but the manifest, sorted by path, with size and checksum.

    What is `known` from the manifest of another artifact, by path, is not read again.
    """
    found = []
    for file in sorted(folder.rglob("*")):
        path = str(file.relative_to(folder))
        if known and path in known:
            found.append(known[path])
        elif file.is_file() and path != NAME:
            found.append(ManifestFile(path=path, num_bytes=file.stat().st_size, crc32c=crc32c_of(file),
                                      num_examples=(num_examples or {}).get(path)))
    return found


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Makes a folder an artifact. It is the last thing that is written into it."""
    write_json(folder / NAME, manifest.model_dump(mode="json"))


def read_manifest(uri: str | Path) -> Manifest:
    """Reads an artifact's manifest; `uri` is that of the manifest itself.

    Raises:
      DataError: there is none, or it is not one.
    """
    try:
        return parse_manifest(_read_remote(str(uri)) if is_remote(uri) else Path(uri).read_bytes(), uri)
    except FileNotFoundError:
        raise DataError(f"{uri}: there is no such manifest; run the task that makes it again") from None


def is_remote(uri: str | Path) -> bool:
    """Whether something lies in a store, and not in a folder."""
    return "://" in str(uri)


def _read_remote(uri: str) -> bytes:
    import fsspec  # here, because the DAG file reads manifests too, and nearly all lie in folders

    try:
        with fsspec.open(uri, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise
    except Exception as error:  # stores fail in as many ways as there are stores
        raise MachineError(f"{uri} can't be read: {type(error).__name__}: {error}; check the store and this host's credentials") from error


def parse_manifest(content: bytes, uri: str | Path) -> Manifest:
    """Raises DataError, with the place that the content is from, if it is not a manifest."""
    try:
        return Manifest.model_validate(json.loads(content))
    except ValueError as error:  # not JSON, or other JSON: pydantic's ValidationError is a ValueError
        raise DataError(f"{uri}: not a manifest of this version of Trainyard: {error}") from None


def read_input(entry: Input) -> Manifest:
    """The manifest of an input. Raises DataError if it is gone, or is not the one any more that the job was planned with."""
    manifest = read_manifest(entry.uri)
    if manifest.digest != entry.digest:
        raise DataError(f"{entry.uri}: its digest is {manifest.digest}, but was {entry.digest} when this job was planned; start a new run")
    return manifest


def refuse_damage(uri: str | Path, manifest: Manifest, files: Iterable[ManifestFile]) -> None:
    """Raises DataError that names what is wrong with some of an artifact's files; their contents are read for that."""
    damage = find_damage(uri, manifest.model_copy(update={"files": list(files)}), checksums=True)
    if damage:
        raise DataError("; ".join(damage) + "; remove the artifact, and run the task that makes it again")


def find_damage(uri: str | Path, manifest: Manifest, checksums: bool = False) -> list[str]:
    """What is wrong with an artifact's files: missing, wrong size or, where asked for, wrong checksum."""
    folder, damage = Path(uri).parent, []
    for file in manifest.files:
        path = folder / file.path
        if not path.is_file():
            damage.append(f"{path} is missing")
        elif path.stat().st_size != file.num_bytes:
            damage.append(f"{path} has {path.stat().st_size} bytes, the manifest says {file.num_bytes}")
        elif checksums and crc32c_of(path) != file.crc32c:
            damage.append(f"{path} has another checksum than the manifest says")
    return damage
