"""The origin of the models: what they were made from, and test images that they were trained on.

Artifacts are traced through the lineage in manifests. The report mentions it if they are gone. The
locations in a report are relative to the storage root, so that it does not depend on the location
of the storage.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import NamedTuple

from pipeline_ops.artifacts.dataset import INDEX, IndexEntry, iterate_index
from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.layout import find_input
from pipeline_ops.artifacts.manifest import Input, Manifest, read_manifest
from pipeline_ops.artifacts.results import LAST_EVALUATION, EvaluationFigures
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.inputs import Inputs
from pipeline_ops.jobs.local_inputs import fetch_input
from pipeline_ops.jobs.request import Request
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.storage.store_path import StorePath

_MAX_LINE = 200
_MAX_NAMED_LEAKS = 3
Changes = dict[str, list[str]]
"""The changes since an older run: lines for each job."""


@dataclasses.dataclass(frozen=True)
class Lineage:
    """The lineage of an evaluation.

    `origins` are artifacts, each with its role, its location and its manifest. Changes are None if
    there is no older artifact, or if it cannot be traced. `last_metrics` are those of the
    challenger of the last run.
    """

    origins: list[tuple[str, str, Manifest]]
    evaluation_fingerprint: str
    since_champion: Changes | None = None
    since_last_run: Changes | None = None
    last_metrics: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def is_champion_preprocessed_differently(self) -> bool:
        """Returns whether the pixels themselves may differ, and not only the choice of images."""
        return any(
            line.startswith(("config stages", "config source", "code "))
            for line in (self.since_champion or {}).get("preprocess", ())
        )


def trace_lineage(request: Request, inputs: Inputs) -> Lineage:
    origins = []
    for name, key, artifact in (
        ("data set", "preprocess", inputs.dataset),
        ("challenger", "train", inputs.challenger),
        ("champion", "champion", inputs.champion),
    ):
        if artifact:
            folder = request.inputs[key].uri.rpartition("/")[0]
            below = folder.removeprefix(f"{request.root}/")
            location = below if below != folder else folder.rpartition("/")[2]
            origins.append((name, location, artifact.manifest))
    since_champion, since_last_run, last_metrics = None, None, dict[str, float]()
    if inputs.champion:
        with contextlib.suppress(DataError, KeyError):
            since_champion = _find_changes(request, inputs, inputs.champion.manifest)
    if last := request.inputs.get(LAST_EVALUATION):
        with contextlib.suppress(DataError, KeyError, ValueError):
            evaluation = read_manifest(open_path(last.uri))
            changes = _find_changes(request, inputs, evaluation)
            changes["evaluate"] = describe_changes(request.fingerprint, evaluation.fingerprint)
            last_metrics = EvaluationFigures.model_validate(evaluation.figures).challenger.metrics
            since_last_run = changes
    return Lineage(
        origins, request.fingerprint.digest, since_champion, since_last_run, last_metrics
    )


def _find_changes(request: Request, inputs: Inputs, older: Manifest) -> Changes:
    """Returns the changes of the data set and of the training since an older artifact was made.

    Raises:
      DataError, KeyError: the older artifact cannot be followed back to its data.
    """
    training, entry = _trace_training(older, open_root(request.root))
    dataset = read_manifest(open_path(entry.uri))
    return {
        "preprocess": describe_changes(inputs.dataset.manifest.fingerprint, dataset.fingerprint),
        "train": describe_changes(inputs.challenger.manifest.fingerprint, training.fingerprint),
    }


def _trace_training(artifact: Manifest, root: StorePath) -> tuple[Manifest, Input]:
    """Returns the training that a model or an evaluation comes from, and its data set.

    Both are looked for below the present storage root first.

    Raises:
      DataError, KeyError: the training is gone, or unknown.
    """
    training = read_manifest(open_path(find_input(artifact.inputs["train"], root).uri))
    return training, find_input(training.inputs["preprocess"], root)


def describe_changes(newer: Fingerprint, older: Fingerprint) -> list[str]:
    """Returns the differences as lines that fit on a page.

    A longer one, such as a whole list of rules or stages, is only named.
    """
    return [
        line if len(line) <= _MAX_LINE else f"{line.partition(':')[0]} changed"
        for line in newer.describe_changes_since(older)
    ]


class Leaks(NamedTuple):
    """The numbers of test examples with an equal image in the training split.

    Equal images are raw files with the same bytes, according to the data set's index. Preprocessing
    finds nearly equal images if `preprocess.duplicates: remove_near` is set. One number is for the
    data set's training split, the other one for the champion's. A number is None if it is unknown:
    the data set has no index, there is no champion, or the champion's training data is gone.
    """

    challenger: int | None
    champion: int | None


def find_leaks(inputs: Inputs, allowed: int, root: StorePath) -> Leaks:
    """Counts the test images that are also in a training split.

    Raises:
      DataError: the challenger was trained on more test images than are allowed. The message names
        the first of them.
    """
    uri = inputs.dataset.uri
    index = _find_index(uri)
    if index is None:
        return Leaks(None, None)
    tests = {
        record.content: record for record in iterate_index(index) if _has_examples(record, "test")
    }
    leaked = _find_in_training(tests, index)
    if len(leaked) > allowed:
        pairs = ", ".join(
            f"{tests[record.content].key} equals {record.key}"
            for record in list(leaked.values())[:_MAX_NAMED_LEAKS]
        )
        raise DataError(
            f"{uri}: {len(leaked)} test image{'s are' if len(leaked) != 1 else ' is'} "
            f"also in the training split, evaluate.allowed_leaks is {allowed}: "
            f"{pairs}{', ...' if len(leaked) > _MAX_NAMED_LEAKS else ''}. "
            "Set preprocess.duplicates to remove_exact."
        )
    champion_index = None
    if inputs.champion:
        with contextlib.suppress(DataError, KeyError):
            _, dataset = _trace_training(inputs.champion.manifest, root)
            champion_index = _find_index(dataset.uri)
    if champion_index is None:
        return Leaks(len(leaked), None)
    return Leaks(len(leaked), len(_find_in_training(tests, champion_index)))


def _find_in_training(tests: dict[str, IndexEntry], index: Path) -> dict[str, IndexEntry]:
    """Returns the first training record that equals a test record, by content."""
    found: dict[str, IndexEntry] = {}
    for record in iterate_index(index):
        if record.content in tests and _has_examples(record, "train"):
            found.setdefault(record.content, record)
    return found


def _has_examples(entry: IndexEntry, split: str) -> bool:
    return entry.split == split and entry.num_examples > 0


def _find_index(dataset_uri: str) -> Path | None:
    dataset = fetch_input(Input(uri=dataset_uri, digest=""), lambda path: path == INDEX)
    path = Path(dataset.uri).parent / INDEX
    return path if path.is_file() else None
