"""The initial weights of a training that are a file or a folder: their digest, and a checked copy.

The digest of a file is its SHA-256, so the same file is the same training wherever it lies. A plan
takes it, and each worker compares it. Published versions are in `versions.py`.
"""

from __future__ import annotations

import functools
import glob
from collections.abc import Iterable
from pathlib import Path

from pipeline_ops.config.train import InitialWeights, InputOptions
from pipeline_ops.contract.manifest import NAME, Input
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.job.local_inputs import open_host_cache
from pipeline_ops.registry.versions import fetch_version
from pipeline_ops.storage.checksums import compute_checksums, compute_digest
from pipeline_ops.storage.open_store import is_remote, open_near, open_path
from pipeline_ops.storage.store_path import StorePath

_LFS_POINTER = b"version https://git-lfs"
_CURE = "Get the file again, or correct train.warm_start.sha256."


def find_weights(weights: InitialWeights, root: StorePath) -> Input:
    """Returns the input for weights at an absolute path or in a bucket.

    Nothing is copied from a bucket. Raises ConfigError if there are no weights, or others.
    """
    path, sha256 = weights.path, weights.sha256
    if is_remote(path):
        if not sha256:
            cure = f"Write {{path: {path}, sha256: HEX}}."
            raise ConfigError(f"train.warm_start: a file in a bucket needs its SHA-256. {cure}")
        if not open_near(root, path).exists():
            raise ConfigError(f"train.warm_start: there is no {path}. Correct the path.")
        return Input(uri=path, digest=sha256)
    found = make_path_input(Path(path))
    if sha256 and not Path(found.uri).is_file():
        raise ConfigError(
            f"train.warm_start.sha256 is for a single file, and {path} has several. Leave it out."
        )
    if sha256 and found.digest != sha256:
        raise ConfigError(
            f"train.warm_start: {path} has the SHA-256 {found.digest}, and not {sha256}. {_CURE}"
        )
    return found


def make_path_input(path: Path) -> Input:
    """Returns the input for a SavedModel's folder, a checkpoint or a file of weights.

    Raises ConfigError if there is none.
    """
    if checkpoint := find_checkpoint(path):
        if fault := find_checkpoint_fault(str(checkpoint)):
            raise ConfigError(f"train.warm_start: {fault}. Get all files of the checkpoint.")
        parts = checkpoint.parent.glob(f"{glob.escape(checkpoint.name)}.*")
        files = [file for file in parts if file.suffix.startswith((".index", ".data-"))]
        return Input(uri=str(checkpoint), digest=_compute_files_digest(checkpoint.parent, files))
    if path.is_dir() and not (path / "saved_model.pb").is_file():
        inside = sorted(found.parent for found in path.glob("*/saved_model.pb"))
        inside += sorted(found.with_suffix("") for found in path.glob("*/*.index"))
        cure = str(inside[-1]) if inside else "a SavedModel's folder, or a file of weights"
        raise ConfigError(
            f"train.warm_start: the folder {path} has no saved_model.pb. Give {cure}."
        )
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
        return Input(uri=str(path), digest=_compute_files_digest(path, files))
    if path.is_file():
        return Input(uri=str(path), digest=_compute_sha256(path))
    raise ConfigError(
        f"train.warm_start: there is no {path}. Give champion, a published version such as "
        "`version 3`, the folder of a SavedModel, a checkpoint of the Object Detection API, or a "
        "file of weights."
    )


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


def find_checkpoint_fault(prefix: str) -> str:
    """Names a file of a checkpoint that is missing, or of which only Git LFS's pointer is there."""
    data = sorted(glob.glob(f"{glob.escape(prefix)}.data-{'[0-9]' * 5}-of-{'[0-9]' * 5}"))
    count = data[-1][-5:] if data else "00001"
    for name in ("index", *(f"data-{number:05}-of-{count}" for number in range(int(count)))):
        file = Path(f"{prefix}.{name}")
        try:
            if not file.is_file():
                return f"there is no {prefix}.{name}"
            with file.open("rb") as stream:
                is_pointer = stream.read(len(_LFS_POINTER)) == _LFS_POINTER
        except OSError as error:
            return f"{prefix}.{name} cannot be read ({error.strerror})"
        if is_pointer:
            return f"{file} is a pointer of Git LFS (`git lfs pull` gets the file)"
    return ""


def fetch_weights(entry: Input) -> str:
    """Returns the local path of a training's initial weights, copied from a bucket.

    Raises DataError if they are gone, or are not those of the plan.
    """
    place = open_path(entry.uri)
    if place.name == NAME:
        return fetch_version(entry).uri
    if not place.is_local:
        key = compute_digest([place.name, entry.digest])  # Keras reads the kind from the name
        fill = functools.partial(_download, place, entry.digest)
        folder = open_host_cache(InputOptions()).get_or_create("weights", key, fill)
        return str(folder / place.name)
    found = make_path_input(place.local).digest
    if found != entry.digest:
        raise DataError(
            f"{entry.uri} has the digest {found}, and had {entry.digest} when this training was "
            "planned. Start a new run."
        )
    return entry.uri


def _download(source: StorePath, sha256: str, folder: Path) -> None:
    size = source.stat()
    if size is None:
        raise DataError(f"train.warm_start: there is no {source}. Correct the path.")
    found = source.download(folder / source.name, size.num_bytes)
    if found.sha256 != sha256:
        raise DataError(
            f"train.warm_start: {source} has the SHA-256 {found.sha256}, and not {sha256}. {_CURE}"
        )


def _compute_files_digest(folder: Path, files: Iterable[Path]) -> str:
    return compute_digest(
        [[str(file.relative_to(folder)), _compute_sha256(file)] for file in sorted(files)]
    )


def _compute_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return compute_checksums(file).sha256
