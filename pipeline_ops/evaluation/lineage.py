"""The origin of a challenger, and the changes since the champion and since the previous run.

The results are rows for the report. Locations are relative to the storage root, so that a report
does not depend on the location of the storage. The training of the champion is found through the
lineage in its manifest. The report mentions it if those artifacts are gone.
"""

from __future__ import annotations

import dataclasses

from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.layout import find_input
from pipeline_ops.artifacts.manifest import Input, Manifest, read_manifest
from pipeline_ops.artifacts.results import LAST_EVALUATION, EvaluationFigures
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.inputs import Inputs
from pipeline_ops.jobs.request import Request
from pipeline_ops.storage.open_store import open_path, open_root

_MAX_LINE = 200


@dataclasses.dataclass(frozen=True)
class Origin:
    """One artifact: its role in this evaluation, and its provenance."""

    name: str
    location: str
    digest: str
    versions: dict[str, str]
    num_sources: int
    seeds: dict[str, int]


@dataclasses.dataclass(frozen=True)
class ChangesSince:
    """The changes since an older run: lines for each job.

    `metrics` are those of the older challenger, if the older run is an evaluation.
    """

    changes: dict[str, list[str]]
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def is_preprocessed_differently(self) -> bool:
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
    evaluation_fingerprint: str
    """The fingerprint of the evaluation itself."""
    since_champion: ChangesSince | None = None
    since_last_run: ChangesSince | None = None


def trace_lineage(request: Request, inputs: Inputs) -> Lineage:
    origins = [
        _build_origin(name, request.inputs[key].uri, artifact.manifest, request.root)
        for name, key, artifact in (
            ("data set", "preprocess", inputs.dataset),
            ("challenger", "train", inputs.challenger),
            ("champion", "champion", inputs.champion),
        )
        if artifact
    ]
    return Lineage(
        origins,
        request.fingerprint.digest,
        _find_changes_since_champion(request, inputs),
        _find_changes_since_last_run(request, inputs),
    )


def _build_origin(name: str, uri: str, manifest: Manifest, root: str) -> Origin:
    folder = uri.rpartition("/")[0]
    is_below = folder.startswith(f"{root}/")
    return Origin(
        name,
        folder.removeprefix(f"{root}/") if is_below else folder.rpartition("/")[2],
        manifest.digest,
        manifest.fingerprint.versions,
        len(manifest.fingerprint.code),
        manifest.seeds,
    )


def _find_changes_since_champion(request: Request, inputs: Inputs) -> ChangesSince | None:
    if inputs.champion is None:
        return None
    try:
        return ChangesSince(_find_changes(request, inputs, inputs.champion.manifest))
    except (DataError, KeyError):
        return None


def _find_changes_since_last_run(request: Request, inputs: Inputs) -> ChangesSince | None:
    last: Input | None = request.inputs.get(LAST_EVALUATION)
    if last is None:
        return None
    try:
        evaluation = read_manifest(open_path(last.uri))
        changes = {
            **_find_changes(request, inputs, evaluation),
            "evaluate": describe_changes(request.fingerprint, evaluation.fingerprint),
        }
        metrics = EvaluationFigures.model_validate(evaluation.figures).challenger.metrics
    except (DataError, KeyError, ValueError):
        return None
    return ChangesSince(changes, metrics)


def _find_changes(request: Request, inputs: Inputs, older: Manifest) -> dict[str, list[str]]:
    """Returns the changes of the data set and of the training since an older artifact was made.

    Raises:
      DataError, KeyError: the older artifact cannot be followed back to its data.
    """
    root = open_root(request.root)
    training = read_manifest(open_path(find_input(older.inputs["train"], root).uri))
    dataset = read_manifest(open_path(find_input(training.inputs["preprocess"], root).uri))
    return {
        "preprocess": describe_changes(inputs.dataset.manifest.fingerprint, dataset.fingerprint),
        "train": describe_changes(inputs.challenger.manifest.fingerprint, training.fingerprint),
    }


def describe_changes(newer: Fingerprint, older: Fingerprint) -> list[str]:
    """Returns the differences as lines that fit on a page.

    A longer one, such as a whole list of rules or stages, is only named.
    """
    return [
        line if len(line) <= _MAX_LINE else f"{line.partition(':')[0]} changed"
        for line in newer.describe_changes_since(older)
    ]
