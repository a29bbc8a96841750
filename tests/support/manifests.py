"""Manifests of artifacts that no job has made, and the request of a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.manifest import Manifest, ManifestFile, list_files
from pipeline_ops.contract.request import Request

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


def make_request(root: Path) -> Request:
    """Makes the request of a train job in a storage root, for which nothing is configured."""
    return Request(
        job="train",
        pipeline="digits",
        run_id="run",
        config_file="digits.yaml",
        config={},
        root=str(root),
        artifact=str(root / "artifacts" / "digits" / "train" / ("0" * 32)),
        fingerprint=EMPTY_FINGERPRINT,
        deadline_seconds=60,
    )


def list_counted(folder: Path, counts: Mapping[str, int | None]) -> list[ManifestFile]:
    """The files of a folder, with the numbers of examples by path."""
    return [
        file.model_copy(update={"num_examples": counts.get(file.path)})
        for file in list_files(folder)
    ]


def list_again(folder: Path, manifest: Manifest) -> list[ManifestFile]:
    """The files of a folder as they are now, with the numbers of examples in a manifest."""
    return list_counted(folder, {file.path: file.num_examples for file in manifest.files})
