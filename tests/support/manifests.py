"""Manifests of artifacts that no job has made."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.manifest import Manifest

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
