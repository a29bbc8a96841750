"""Manifests of artifacts that no job has made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.manifest import Manifest, ManifestFile, list_files

EMPTY_FINGERPRINT = Fingerprint(config={}, inputs={}, code={}, versions={})


def make_manifest(
    job: str = "preprocess",
    fingerprint: Fingerprint = EMPTY_FINGERPRINT,
    figures: BaseModel | dict[str, Any] | None = None,
    **fields: Any,
) -> Manifest:
    """Makes a manifest of the pipeline `digits`. `fields` come before what is made up."""
    if isinstance(figures, BaseModel):
        figures = figures.model_dump(mode="json")
    values = {
        "job": job,
        "pipeline": "digits",
        "fingerprint": fingerprint,
        "fingerprint_digest": fingerprint.digest,
        "files": [],
        "figures": figures or {},
    }
    return Manifest(**(values | fields))


def list_counted(folder: Path, counts: Mapping[str, int | None]) -> list[ManifestFile]:
    """The files of a folder, with the numbers of examples by path."""
    return [
        file.model_copy(update={"num_examples": counts.get(file.path)})
        for file in list_files(folder)
    ]


def list_again(folder: Path, manifest: Manifest) -> list[ManifestFile]:
    """The files of a folder as they are now, with the numbers of examples in a manifest."""
    return list_counted(folder, {file.path: file.num_examples for file in manifest.files})
