"""The origin of a challenger, and the changes since the champion and since the previous run.

The results are rows for the report. Places are shown relative to the storage root, so that a report
does not depend on the location of the storage. The champion's own training is followed through the
lineage in its manifest. If those artifacts are gone, the report says so.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.manifest import Input, Manifest, read_manifest
from pipeline_ops.artifacts.results import LAST_EVALUATION, EvaluationFigures
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.inputs import Inputs
from pipeline_ops.jobs.request import Request

_MAX_LINE = 200


@dataclasses.dataclass(frozen=True)
class Origin:
    """One artifact: its role in this evaluation, and its provenance."""

    name: str
    place: str
    digest: str
    fingerprint: str
    versions: dict[str, str]
    num_sources: int
    seeds: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Since:
    """The changes since an older run: lines for each job.

    `metrics` are those of the older challenger, if the older run is an evaluation.
    """

    changes: dict[str, list[str]]
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def is_nothing(self) -> bool:
        return not any(self.changes.values())

    @property
    def is_preprocessed_otherwise(self) -> bool:
        """Returns whether the pixels themselves may differ, and not only the choice of images."""
        return any(
            line.startswith(("config stages", "config source", "code "))
            for line in self.changes["preprocess"]
        )


@dataclasses.dataclass(frozen=True)
class Lineage:
    """The lineage of an evaluation.

    `since_champion` and `since_last_run` are None if there is none, or if it cannot be traced.
    """

    origins: list[Origin]
    evaluation: str
    """The fingerprint of the evaluation itself."""
    since_champion: Since | None = None
    since_last_run: Since | None = None


def trace(request: Request, inputs: Inputs) -> Lineage:
    named = {
        "data set": inputs.dataset,
        "challenger": inputs.challenger,
        "champion": inputs.champion,
    }
    origins = [
        _origin(name, entry.uri, entry.manifest, Path(request.root))
        for name, entry in named.items()
        if entry
    ]
    return Lineage(
        origins,
        request.fingerprint.digest,
        _since_champion(inputs),
        _since_last_run(request, inputs),
    )


def _origin(name: str, uri: str, manifest: Manifest, root: Path) -> Origin:
    folder = Path(uri).parent
    place = folder.relative_to(root) if folder.is_relative_to(root) else Path(folder.name)
    return Origin(
        name,
        str(place),
        manifest.digest,
        manifest.fingerprint_digest,
        manifest.fingerprint.versions,
        len(manifest.fingerprint.code),
        manifest.seeds,
    )


def _since_champion(inputs: Inputs) -> Since | None:
    if inputs.champion is None:
        return None
    try:
        training = read_manifest(inputs.champion.manifest.inputs["train"].uri)
        return Since(_changes(inputs, training))
    except (DataError, KeyError):
        return None


def _since_last_run(request: Request, inputs: Inputs) -> Since | None:
    last: Input | None = request.inputs.get(LAST_EVALUATION)
    if last is None:
        return None
    try:
        evaluation = read_manifest(last.uri)
        training = read_manifest(evaluation.inputs["train"].uri)
        changes = {
            **_changes(inputs, training),
            "evaluate": told(request.fingerprint, evaluation.fingerprint),
        }
        metrics = EvaluationFigures.model_validate(evaluation.figures).challenger.metrics
    except (DataError, KeyError, ValueError):
        return None
    return Since(changes, metrics)


def _changes(inputs: Inputs, training: Manifest) -> dict[str, list[str]]:
    """Returns the changes of the data set and of the training since an older training.

    Raises:
      DataError, KeyError: the older training cannot be followed back to its data.
    """
    dataset = read_manifest(training.inputs["preprocess"].uri)
    return {
        "preprocess": told(inputs.dataset.manifest.fingerprint, dataset.fingerprint),
        "train": told(inputs.challenger.manifest.fingerprint, training.fingerprint),
    }


def told(newer: Fingerprint, older: Fingerprint) -> list[str]:
    """Returns the differences as lines that fit on a page.

    A longer line, such as a whole list of rules or stages, only says that it has changed.
    """
    return [
        line if len(line) <= _MAX_LINE else f"{line.partition(':')[0]} changed"
        for line in newer.changes_since(older)
    ]
