"""The manifest: the last file of an artifact, and the proof that the artifact is whole.

An artifact is a folder with a `manifest.json`. It is immutable once the manifest exists. Its URI is
the only value that passes from one task to the next. A file that an artifact of the same job holds
already is referenced and not copied. A manifest may come from anyone who can write to the storage.
Therefore its size is limited, its paths stay below the folder of the job's artifacts, and its files
are opened without following links.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, model_validator

from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.errors import DataError, MachineError, TrainyardError
from pipeline_ops.storage.checksums import Checksums, compute_checksums, compute_digest
from pipeline_ops.storage.local_files import (
    RelativePath,
    UnsafePath,
    open_below,
    withdraw_folder,
    write_json,
)
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.storage.parsing import JsonModel, describe_validation_error
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_path import StorePath

NAME = "manifest.json"
MAX_BYTES = 64 << 20
MAX_FILES = 200_000

# Names of inputs besides those of earlier jobs, in requests, manifests and fingerprints

BASE = "base"
"""The data set that an incremental one is made from."""
RAW_FILES = "raw files"
"""The raw files of a data set, in the fingerprint only."""
REFERENCES = ("champion_data", "previous_data")
"""The data set that a new one is compared with. A preprocess job has at most one of them."""
REFERENCE_DIGESTS = SCHEMA_DIGEST, STATISTICS_DIGEST = "reference schema", "reference statistics"
"""What of the reference is in the fingerprint: all that may make the job refuse the data."""
WARM_START = "warm_start"
"""The initial weights of a training."""


def _validate_listed_path(path: str) -> str:
    if path == NAME:
        raise UnsafePath(f"{path} cannot be among the files that a manifest lists")
    return path


class ManifestFile(JsonModel):
    """One file of an artifact. `num_examples` is for shards. Old manifests have no SHA-256.

    `stored_at` is where the file lies, relative to the folder that holds the artifacts of the job:
    `<fingerprint>/<path>`. None means below the artifact's own folder, at `path`.
    """

    model_config = ConfigDict(frozen=True)

    path: Annotated[RelativePath, AfterValidator(_validate_listed_path)]
    num_bytes: int = Field(ge=0, lt=1 << 63)
    crc32c: str = Field(pattern=r"^[0-9a-f]{8}$")
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    num_examples: int | None = Field(default=None, ge=0, lt=1 << 63)
    stored_at: Annotated[RelativePath, Field(pattern=r"^[0-9a-f]{32}/")] | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that digests cover: all but the location."""
        return self.model_dump(exclude={"stored_at"})

    def find_place(self, artifact: str) -> str:
        """The location, relative to the folder of the job, of a file that an artifact lists."""
        return self.stored_at or f"{artifact}/{self.path}"

    def locate(self, folder: Path) -> Path:
        """The path of the file of an artifact in a folder."""
        return folder.parent / self.stored_at if self.stored_at else folder / self.path

    def reference(self, folder: Path) -> ManifestFile:
        """The entry for another artifact of the job.

        `folder` is that of the artifact of this entry. A reference names the artifact that really
        holds the file, and never another reference.
        """
        place = self.find_place(folder.name)
        return ManifestFile.model_validate(self.identity | {"stored_at": place})

    def has_content(self, found: Checksums) -> bool:
        """Compares the size and the best checksum that the manifest has."""
        if found.num_bytes != self.num_bytes:
            return False
        return found.crc32c == self.crc32c if self.sha256 is None else found.sha256 == self.sha256


class Input(JsonModel):
    """An artifact that this one was made from."""

    model_config = ConfigDict(frozen=True)

    uri: str
    digest: str


class Maker(JsonModel):
    """The run that has made an artifact, and when."""

    model_config = ConfigDict(frozen=True)

    run_id: str = Field(max_length=1000)
    time: dt.datetime

    @classmethod
    def of(cls, run_id: str) -> Maker:
        """Returns the run as the maker at the present time."""
        return cls(run_id=run_id, time=dt.datetime.now(dt.UTC))


class Manifest(JsonModel):
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
    made_by: Maker | None = None
    """Not part of the digest. Artifacts from before this field have none."""

    @model_validator(mode="after")
    def _validate_paths(self) -> Manifest:
        """Checks that each path is listed once, and that no file is the folder of another file."""
        # With "/" as the lowest character, a folder's first file comes directly after its name.
        paths = sorted((file.path for file in self.files), key=lambda path: path.replace("/", "\0"))
        for path, following in itertools.pairwise(paths):
            if path == following:
                raise ValueError("files: a path is listed twice")
            if following.startswith(f"{path}/"):
                raise ValueError(f"files: {path} is listed as a file and as a folder")
        return self

    @property
    def digest(self) -> str:
        """32 hex digits over names, sizes and checksums of the files.

        Equal contents have equal digests.
        """
        old = {"stored_at", "sha256"}
        return compute_digest(
            [file.identity if file.sha256 else file.model_dump(exclude=old) for file in self.files]
        )

    @property
    def num_bytes(self) -> int:
        """The size of all files."""
        return sum(file.num_bytes for file in self.files)

    def get_file(self, path: str) -> ManifestFile:
        """Raises KeyError."""
        return {file.path: file for file in self.files}[path]


def list_files(folder: Path, described: Iterable[ManifestFile] = ()) -> list[ManifestFile]:
    """Lists every file below a folder except the manifest, sorted by path, with size and checksums.

    Of `described` files, only the sizes are looked at. Raises DataError for a link, and
    MachineError if a described file is missing or has another size.
    """
    known = {file.path: file for file in described}

    def describe(path: str) -> ManifestFile:
        with open_below(folder, path) as file:
            if (entry := known.get(path)) is None:
                return ManifestFile(path=path, **dataclasses.asdict(compute_checksums(file)))
            if (num_bytes := os.fstat(file.fileno()).st_size) != entry.num_bytes:
                raise MachineError(
                    f"{folder / path} has {num_bytes} bytes, and {entry.num_bytes} were written. "
                    "Repair the disk, then retry."
                )
            return entry

    paths = sorted(
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_symlink() or not file.is_dir()
    )
    if missing := known.keys() - {*paths}:
        raise MachineError(f"{folder / min(missing)} was removed after it was written. Retry.")
    return map_requests(describe, (path for path in paths if path != NAME))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Makes a folder an artifact. The manifest is the last file that is written into it."""
    write_json(folder / NAME, manifest.model_dump(mode="json"))


def read_manifest(path: Path | StorePath) -> Manifest:
    """Reads a manifest. Raises DataError if it is missing or invalid."""
    try:
        content = (path if isinstance(path, StorePath) else open_path(path)).read(MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{path}: there is no such manifest. Run the task that makes it again."
        ) from None
    except OSError as error:
        raise MachineError(
            f"{path} cannot be read: {error.strerror}. Repair the disk, then retry."
        ) from error
    return parse_manifest(content, str(path))


def parse_manifest(content: bytes, uri: str | Path) -> Manifest:
    """Parses a manifest. Raises DataError with its origin `uri` if it is invalid."""
    if len(content) > MAX_BYTES:
        problem = f"it has more than {MAX_BYTES} bytes"
    else:
        try:
            return Manifest.model_validate_json(content)
        except ValidationError as error:
            problem = describe_validation_error(error)
    raise DataError(f"{uri}: not a manifest of this version of Trainyard: {problem}")


def locate_file(manifest: StorePath, file: ManifestFile) -> StorePath:
    """The place of a file of an artifact, by the path of the artifact's manifest."""
    folder, name, _ = str(manifest).rsplit("/", 2)
    return open_root(folder, manifest.options) / file.find_place(name)


def fetch_file(
    source: StorePath,
    file: ManifestFile,
    target: Path,
    remedy: str,
    error: type[TrainyardError] = MachineError,
) -> None:
    """Downloads a file, and compares its content with the manifest on the way.

    Raises an `error` with the remedy if the file is missing or has another content, and
    MachineError if the store or the disk failed.
    """
    try:
        found = source.download(target, file.num_bytes)
    except FileNotFoundError:
        raise error(f"{source} is missing, but the manifest lists it. {remedy}") from None
    if not file.has_content(found):
        raise error(f"{source} has another checksum than in the manifest. {remedy}")


def find_file(manifest: StorePath, path: str) -> StorePath | None:
    """The place of a file of an artifact by its path. None if the artifact has no such file."""
    files = (file for file in read_manifest(manifest).files if file.path == path)
    return next((locate_file(manifest, file) for file in files), None)


def read_input(entry: Input) -> Manifest:
    """Reads the manifest of an input. Raises DataError unless it is the one of the job's plan."""
    manifest = read_manifest(open_path(entry.uri))
    if manifest.digest != entry.digest:
        raise DataError(
            f"{entry.uri}: its digest is {manifest.digest}, but was {entry.digest} when this job "
            "was planned. Start a new run."
        )
    return manifest


# Missing and damaged files


def check_files(path: Path | StorePath, manifest: Manifest, files: Iterable[ManifestFile]) -> None:
    """Reads some of an artifact's files. Raises DataError that names the damaged ones."""
    damage = find_damage(path, manifest.model_copy(update={"files": list(files)}), checksums=True)
    if damage:
        raise DataError(
            "; ".join(damage) + ". Remove the artifact that holds it, and run the task again."
        )


def find_damage(path: Path | StorePath, manifest: Manifest, checksums: bool = False) -> list[str]:
    """The problems of an artifact's files: missing, a link, wrong size or wrong checksum.

    `path` is that of its manifest. In a bucket no checksums are computed, because each file is
    compared with its manifest when it is fetched. Raises MachineError for a file that a folder has
    and that cannot be read.
    """
    if isinstance(path, StorePath) and not path.is_local:
        return _find_remote_damage(path.parent, manifest)
    folder = Path(str(path)).parent

    def describe(file: ManifestFile) -> str | None:
        name = str(file.locate(folder))
        if file.stored_at:
            name += f" (referenced by {folder / NAME})"
        root, place = (folder.parent, file.stored_at) if file.stored_at else (folder, file.path)
        try:
            with open_below(root, place) as opened:
                if (num_bytes := os.fstat(opened.fileno()).st_size) != file.num_bytes:
                    return f"{name} has {num_bytes} bytes, but {file.num_bytes} in the manifest"
                if checksums and not file.has_content(compute_checksums(opened)):
                    return f"{name} has another checksum than in the manifest"
        except (FileNotFoundError, NotADirectoryError):
            return f"{name} is missing"
        except DataError as error:
            return str(error)
        except OSError as error:
            raise MachineError(
                f"{name} cannot be read: {error.strerror}. Repair the disk, then retry."
            ) from error
        return None

    found = map_requests(describe, manifest.files) if checksums else map(describe, manifest.files)
    return [problem for problem in found if problem]


def _find_remote_damage(folder: StorePath, manifest: Manifest) -> list[str]:
    """The missing files and the wrong sizes of an artifact in a bucket, from listings alone."""
    artifacts = open_root(str(folder).rpartition("/")[0], folder.options)
    listed = [(file.find_place(folder.name), file.num_bytes) for file in manifest.files]
    found = dict[str, int]()
    for name in {place.partition("/")[0] for place, _ in listed}:
        found |= {f"{name}/{each.name}": each.num_bytes for each in (artifacts / name).walk()}
    return [
        f"{artifacts / place} has {found[place]} bytes, but {num_bytes} in the manifest"
        if place in found
        else f"{artifacts / place} is missing"
        for place, num_bytes in listed
        if found.get(place) != num_bytes
    ]


def has_damage(manifest: StorePath) -> bool:
    """Returns whether an artifact is there and is damaged, by its manifest's path."""
    if not manifest.exists():
        return False
    try:
        return bool(find_damage(manifest, read_manifest(manifest)))
    except DataError:
        return True


def withdraw_artifact(folder: StorePath) -> None:
    """Removes the manifest of a damaged artifact.

    Newer artifacts may refer to its whole files, which stay until it is made again.
    """
    if folder.is_local:
        withdraw_folder(folder.local, NAME)
    else:
        (folder / NAME).remove()
