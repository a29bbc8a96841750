"""The inputs of an evaluation: data set, challenger and champion, checked against manifests.

Nothing else in the storage affects the result. A file that differs from its manifest is refused
here, by name, before a model sees it. A test split that differs from the one that the request pins
is refused, too.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pydantic import BaseModel

from pipeline_ops.artifacts.dataset import (
    INDEX,
    QUARANTINE,
    STATISTICS,
    DatasetFigures,
    removed_positions,
    shard_paths,
    shards_of,
    split_digest,
)
from pipeline_ops.artifacts.manifest import Manifest, read_input, refuse_damage
from pipeline_ops.artifacts.results import (
    SAVED_MODEL,
    TEST_SPLIT,
    ModelFigures,
    TrainingFigures,
    files_of_saved_model,
)
from pipeline_ops.errors import DataError
from pipeline_ops.jobs.request import Request
from pipeline_ops.registry.registry import fetched

_SAVED_MODEL_PARTS = ("saved_model.pb", "fingerprint.pb", "variables", "assets")
"""The parts of a SavedModel. A version's folder may hold other formats next to them."""


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The data set. Only its test split is read."""

    uri: str
    manifest: Manifest
    figures: DatasetFigures

    @property
    def test_shards(self) -> list[str]:
        return shard_paths(self.uri, self.manifest, "test")

    @property
    def removed_from_test_shards(self) -> tuple[tuple[int, ...], ...]:
        return removed_positions(self.manifest, "test")

    @property
    def num_test_examples(self) -> int:
        return self.figures.num_examples["test"]

    @property
    def quarantine(self) -> Path:
        return Path(self.uri).parent / QUARANTINE

    @property
    def statistics(self) -> Path:
        return Path(self.uri).parent / STATISTICS


@dataclasses.dataclass(frozen=True)
class Challenger:
    """The model that training has produced."""

    uri: str
    manifest: Manifest
    figures: TrainingFigures

    @property
    def saved_model(self) -> Path:
        return Path(self.uri).parent / SAVED_MODEL

    @property
    def model_bytes(self) -> int:
        return sum(file.num_bytes for file in files_of_saved_model(self.manifest))


@dataclasses.dataclass(frozen=True)
class Champion:
    """The version in service."""

    uri: str
    manifest: Manifest
    figures: ModelFigures

    @property
    def version(self) -> int:
        return self.figures.version

    @property
    def saved_model(self) -> Path:
        return Path(self.uri).parent

    @property
    def model_bytes(self) -> int:
        return sum(
            file.num_bytes
            for file in self.manifest.files
            if file.path.split("/")[0] in _SAVED_MODEL_PARTS
        )


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of an evaluation. There may be no champion yet."""

    dataset: Dataset
    challenger: Challenger
    champion: Champion | None


def read_inputs(request: Request) -> Inputs:
    """Reads and checks the inputs.

    Raises:
      DataError: an artifact is gone, changed or damaged, or does not fit the others.
    """
    if "champion" in request.inputs:  # a version in an object store is read from a local copy
        champion = fetched(request.inputs["champion"], Path(request.root))
        request = request.model_copy(update={"inputs": {**request.inputs, "champion": champion}})
    dataset = Dataset(*_read(request, "preprocess", DatasetFigures))
    challenger = Challenger(*_read(request, "train", TrainingFigures))
    champion = (
        Champion(*_read(request, "champion", ModelFigures))
        if "champion" in request.inputs
        else None
    )
    _refuse_unfit(dataset, challenger)
    _refuse_other_tests(dataset, request)
    others = [
        file for file in dataset.manifest.files if file.path in (QUARANTINE, INDEX, STATISTICS)
    ]
    refuse_damage(dataset.uri, dataset.manifest, [*shards_of(dataset.manifest, "test"), *others])
    refuse_damage(challenger.uri, challenger.manifest, files_of_saved_model(challenger.manifest))
    if champion:
        refuse_damage(champion.uri, champion.manifest, champion.manifest.files)
    return Inputs(dataset, challenger, champion)


def _read(request: Request, name: str, figures: type[BaseModel]) -> tuple:
    """Returns the URI, the manifest and the figures of an input."""
    manifest = read_input(request.inputs[name])
    return request.inputs[name].uri, manifest, figures.model_validate(manifest.figures)


def _refuse_other_tests(dataset: Dataset, request: Request) -> None:
    """Refuses a test split that differs from the pinned one.

    The manifest's own digest covers its files, but not the removal of examples from them. This
    digest covers both.
    """
    pinned, found = request.fingerprint.inputs[TEST_SPLIT], split_digest(dataset.manifest, "test")
    if found != pinned:
        raise DataError(
            f"{dataset.uri}: the digest of its test split is {found}, "
            f"but {pinned} is pinned in this evaluation's request; "
            "start a new run"
        )


def _refuse_unfit(dataset: Dataset, challenger: Challenger) -> None:
    if challenger.manifest.inputs["preprocess"].digest != dataset.manifest.digest:
        raise DataError(
            f"{challenger.uri}: the challenger was trained on another data set than {dataset.uri}, "
            "and may have seen its test examples"
        )
    if not dataset.num_test_examples:
        raise DataError(
            f"{dataset.uri}: the test split is empty; raise preprocess.split.test, or add data"
        )
