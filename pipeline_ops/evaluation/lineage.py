"""Where a challenger comes from, and what is new since the champion: rows for the report.

Places are shown relative to the storage root, so that a report does not depend on where it was made. The champion's
own training is followed through the lineage in its manifest; if those artifacts are gone, the report says so.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pipeline_ops.contracts.errors import DataError
from pipeline_ops.contracts.manifest import Manifest, read_manifest
from pipeline_ops.contracts.request import Request
from pipeline_ops.evaluation.inputs import Inputs


@dataclasses.dataclass(frozen=True)
class Origin:
    """One artifact: what it is to this evaluation, and what it was made by."""

    name: str
    place: str
    digest: str
    fingerprint: str
    versions: dict[str, str]
    num_sources: int
    seeds: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Lineage:
    """`changes` has a list of lines for each job; None where the champion can't be traced, or is not there."""

    origins: list[Origin]
    evaluation: str
    """The fingerprint of the evaluation itself."""
    changes: dict[str, list[str]] | None


def trace(request: Request, inputs: Inputs) -> Lineage:
    named = {"data set": inputs.dataset, "challenger": inputs.challenger, "champion": inputs.champion}
    origins = [_origin(name, entry.uri, entry.manifest, Path(request.root)) for name, entry in named.items() if entry]
    return Lineage(origins, request.fingerprint.digest, _changes(inputs))


def _origin(name: str, uri: str, manifest: Manifest, root: Path) -> Origin:
    folder = Path(uri).parent
    place = folder.relative_to(root) if folder.is_relative_to(root) else Path(folder.name)
    return Origin(name, str(place), manifest.digest, manifest.fingerprint_digest, manifest.fingerprint.versions, len(manifest.fingerprint.code),
                  manifest.seeds)


def _changes(inputs: Inputs) -> dict[str, list[str]] | None:
    if inputs.champion is None:
        return None
    try:
        training = read_manifest(inputs.champion.manifest.inputs["train"].uri)
        dataset = read_manifest(training.inputs["preprocess"].uri)
    except DataError:
        return None
    return {"preprocess": inputs.dataset.manifest.fingerprint.changes_since(dataset.fingerprint),
            "train": inputs.challenger.manifest.fingerprint.changes_since(training.fingerprint)}
