"""Bundles of initial weights that people bring into the store, for `train.warm_start`.

    <root>/weights/<name>/<file>           the weights, unchanged
    <root>/weights/<name>/manifest.json    created last, with checksum and license
    <root>/weights/.lock                   held while a bundle is added

A bundle is never changed. Nothing is downloaded: `keras_weights.csv` has the checksums that Keras's
own source gives for the files of `keras.applications`, so a file from anywhere can be compared.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import fnmatch
import hashlib
import re
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.manifest import NAME, Input, Manifest, ManifestFile, read_manifest
from pipeline_ops.config.reading import suggest_name
from pipeline_ops.config.train import BUNDLE_NAME
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.registry.versions import fetch_version
from pipeline_ops.storage.checksums import ChecksumAccumulator, compute_checksums
from pipeline_ops.storage.local_files import format_json, parse_relative_path
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.lease import hold_lease

_SUFFIXES = (".npz", ".h5", ".keras")
_JOB = "weights"
"""In the place of a job's name in a manifest, which no job has."""
_ADD_SECONDS = 600.0
_CURE = "Remove the folder of the bundle, and add the weights again."


class BundleFigures(BaseModel):
    """License, origin and classes of weights. `added` is the time in UTC.

    `classes` names the list of the classes of the head, "" if there is none or it is not known.
    """

    model_config = ConfigDict(frozen=True)

    license: str
    source: str
    added: str
    classes: str = ""


@dataclasses.dataclass(frozen=True)
class Bundle:
    """One file of weights in the store."""

    place: StorePath
    file: ManifestFile
    figures: BundleFigures

    @classmethod
    def read(cls, place: StorePath) -> Bundle:
        """Reads the manifest. Raises DataError if there is none, or it is not one of a bundle."""
        manifest = read_manifest(place / NAME)
        with contextlib.suppress(ValueError):  # a ValidationError is one
            [file], figures = manifest.files, BundleFigures.model_validate(manifest.figures)
            if file.sha256 and not file.stored_at and manifest.job == _JOB:
                return cls(place, file, figures)
        raise DataError(f"{place / NAME} is not the manifest of a bundle of weights. {_CURE}")

    def check(self) -> None:
        """Reads the whole file. Raises DataError if it is missing or differs from the manifest."""
        path, found = self.place / self.file.path, ChecksumAccumulator()
        try:
            for block in path.read_blocks():
                found.update(block)
        except FileNotFoundError:
            raise DataError(f"{path} is missing. {_CURE}") from None
        if not self.file.has_content(found.result):
            raise DataError(
                f"{path} has the SHA-256 {found.result.sha256}, and {self.file.sha256} in its "
                f"manifest. {_CURE}"
            )


class Published(NamedTuple):
    """A file of `keras.applications`: its name or a pattern, and the checksum in Keras's source.

    The checksum is an MD5 or a SHA-256, "" if there is none. `classes` as in `BundleFigures`.
    """

    name: str
    checksum: str
    classes: str

    def check(self, file: Path) -> None:
        """Raises ConfigError if a file is not the published one."""
        kind = "sha256" if len(self.checksum) == 64 else "md5"
        with open(file, "rb") as opened:
            found = hashlib.file_digest(opened, kind).hexdigest()
        if self.checksum and found != self.checksum:
            raise ConfigError(
                f"{file} has the {kind.upper()} {found}, and Keras names {self.checksum} for "
                f"{self.name}. Get the file again, or correct --published. Nothing was stored."
            )


def read_published() -> list[Published]:
    """Reads the table."""
    with open(Path(__file__).with_name("keras_weights.csv"), encoding="utf-8") as file:
        return [Published(**row) for row in csv.DictReader(file)]


def find_published(name: str) -> Published:
    """Finds a file of `keras.applications`. Raises ConfigError with the nearest name."""
    table = read_published()
    if row := next((each for each in table if fnmatch.fnmatchcase(name, each.name)), None):
        return row
    hint = suggest_name(name, [each.name for each in table])
    raise ConfigError(f"--published {name}: Keras publishes no such file; {hint}.")


def list_bundles(root: StorePath) -> list[StorePath]:
    """Lists the folders of the bundles, by name."""
    folder = root / "weights"
    return [folder / entry.name.removesuffix(f"/{NAME}") for entry in folder.find_in_folders(NAME)]


def find_bundle(root: StorePath, name: str) -> Input:
    """Finds the bundle that a config names. Its digest is the SHA-256, as of a file on a disk.

    Raises ConfigError with the nearest name if there is none.
    """
    places = {place.name: place for place in list_bundles(root)}
    if place := places.get(name):
        return Input(uri=str(place / NAME), digest=str(Bundle.read(place).file.sha256))
    hint = f"; {suggest_name(name, places)}" if places else ""
    raise ConfigError(
        f"train.warm_start: there are no weights {name} in {root}/weights{hint}. `trainyard "
        "weights add` adds them."
    )


def add_bundle(
    root: StorePath,
    name: str,
    file: Path,
    figures: BundleFigures,
    sha256: str | None = None,
    published: Published | None = None,
) -> bool:
    """Copies a file into the store. Returns False if the bundle holds the same content already.

    Raises ConfigError if name, file or checksum is wrong, or the bundle holds another content.
    """
    if not re.fullmatch(BUNDLE_NAME, name):
        raise ConfigError(
            f"{name}: a name of weights is like resnet50 or cells_v2.1, in lower case."
        )
    if file.suffix not in _SUFFIXES or not file.is_file():
        raise ConfigError(f"{file}: must be a file whose name ends in {', '.join(_SUFFIXES)}.")
    with open(file, "rb") as opened:
        found = compute_checksums(opened)
    if sha256 not in (None, found.sha256):
        raise ConfigError(
            f"{file} has the SHA-256 {found.sha256}, and not {sha256}. Get the file again, or "
            "correct --sha256. Nothing was stored."
        )
    if published:
        published.check(file)
    place, path = root / "weights" / name, parse_relative_path(file.name)
    fingerprint = Fingerprint(config={}, inputs={}, code={}, versions={})
    manifest = Manifest(
        job=_JOB,
        pipeline="",
        fingerprint=fingerprint,
        fingerprint_digest=fingerprint.digest,
        files=[ManifestFile(path=path, **dataclasses.asdict(found))],
        figures=figures.model_dump(),
    )
    lock = root / "weights" / ".lock"
    with hold_lease(lock, f"the right to add weights to {root}", _ADD_SECONDS) as lease:
        if (place / NAME).exists():
            present = Bundle.read(place).file
            if present.has_content(found):
                return False
            raise ConfigError(
                f"{place} holds another file, {present.path} with the SHA-256 {present.sha256}. "
                "Trainings may have begun with it. Choose another name."
            )
        (place / path).upload(file)
        lease.commit(place / NAME, format_json(manifest.model_dump(mode="json")))
    return True


def find_checkpoint(path: Path) -> Path | None:
    """Returns the prefix of a TensorFlow checkpoint, without .index and .data-00000-of-00001.

    The path is the prefix, its .index, or a folder with one checkpoint. Returns None for anything
    else. Raises ConfigError for a folder with several.
    """
    if path.is_dir():
        found = sorted(index.with_suffix("") for index in path.glob("*.index"))
        if len(found) > 1:
            names = ", ".join(prefix.name for prefix in found)
            raise ConfigError(
                f"train.warm_start: {path} has several checkpoints, {names}. Name one of them."
            )
        return found[0] if found else None
    prefix = path.with_suffix("") if path.suffix == ".index" else path
    return prefix if Path(f"{prefix}.index").is_file() else None


def fetch_weights(entry: Input) -> str:
    """Returns the local path of a training's initial weights, copied from a bucket.

    Raises DataError if a bundle is gone or damaged, or is not the one of the plan.
    """
    uri = fetch_version(entry).uri
    path = Path(uri)
    if path.name != NAME or read_manifest(path).job != _JOB:
        return uri
    bundle = Bundle.read(open_path(path.parent))
    bundle.check()
    if bundle.file.sha256 != entry.digest:
        raise DataError(
            f"{entry.uri} has other weights than when this training was planned. Start a new run."
        )
    return str(path.parent / bundle.file.path)
