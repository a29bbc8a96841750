"""The inputs of an evaluation: data set, challenger and champion, checked against manifests.

Nothing else in the storage affects the result. A file that differs from its manifest is refused
by name, before a model reads it. A test split is also refused if it is not the one that the request
pins.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from pipeline_ops.artifacts.dataset import (
    INDEX,
    QUARANTINE,
    STATISTICS,
    DatasetFigures,
    compute_split_digest,
    list_removed_positions,
    list_shard_paths,
)
from pipeline_ops.artifacts.manifest import Input, Manifest, check_files, read_input
from pipeline_ops.artifacts.results import (
    SAVED_MODEL,
    TEST_SPLIT,
    ModelFigures,
    TrainingFigures,
    is_saved_model_file,
    list_saved_model_files,
)
from pipeline_ops.errors import DataError
from pipeline_ops.jobs.local_inputs import use_local_inputs
from pipeline_ops.jobs.request import Request
from pipeline_ops.registry.versions import fetch_version
from pipeline_ops.storage.open_store import open_path

_DESCRIPTION = (QUARANTINE, INDEX, STATISTICS)
NO_CHAMPION = "there is no champion to compare it with"
_SAVED_MODEL_PARTS = ("saved_model.pb", "fingerprint.pb", "variables", "assets")
"""The parts of a SavedModel. A version's folder may hold other formats next to them."""


FiguresT = TypeVar("FiguresT", bound=BaseModel)


@dataclasses.dataclass(frozen=True)
class InputArtifact(Generic[FiguresT]):
    """An artifact that the evaluation reads."""

    uri: str
    manifest: Manifest
    figures: FiguresT

    @property
    def folder(self) -> Path:
        return Path(self.uri).parent


class Dataset(InputArtifact[DatasetFigures]):
    """The data set. Only its test split is read."""

    @property
    def test_shards(self) -> list[str]:
        return list_shard_paths(self.uri, self.manifest, "test")

    @property
    def removed_test_positions(self) -> tuple[tuple[int, ...], ...]:
        return list_removed_positions(self.manifest, "test")

    @property
    def num_test_examples(self) -> int:
        return self.figures.num_examples["test"]


class Challenger(InputArtifact[TrainingFigures]):
    """The model that training has produced."""

    name = "the challenger"

    @property
    def saved_model(self) -> Path:
        return self.folder / SAVED_MODEL

    @property
    def model_bytes(self) -> int:
        return sum(file.num_bytes for file in list_saved_model_files(self.manifest))


class Champion(InputArtifact[ModelFigures]):
    """The version in service."""

    @property
    def version(self) -> int:
        return self.figures.version

    @property
    def name(self) -> str:
        return f"the champion (version {self.version})"

    @property
    def saved_model(self) -> Path:
        return self.folder

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

    @property
    def models(self) -> list[Challenger | Champion]:
        """The models to run: the challenger, and the champion if it has the same classes."""
        if self.champion is None or self.no_champion_reason:
            return [self.challenger]
        return [self.challenger, self.champion]

    @property
    def no_champion_reason(self) -> str | None:
        """The reason for an evaluation without a champion, as the end of a sentence."""
        if self.champion is None:
            return NO_CHAMPION
        known, wanted = self.champion.figures.class_names, self.dataset.figures.class_names
        if known == wanted:
            return None
        unknown, missing = sorted(set(wanted) - set(known)), sorted(set(known) - set(wanted))
        parts = [f"does not know {', '.join(unknown)}"] if unknown else []
        parts += [f"knows {', '.join(missing)}, which the data set lacks"] if missing else []
        return f"{self.champion.name} {' and '.join(parts) or 'has the classes in another order'}"


def read_inputs(request: Request) -> Inputs:
    """Reads and checks the inputs.

    Raises:
      DataError: an artifact is gone, changed or damaged, or does not belong to the others.
    """
    request = use_local_inputs(request, {"preprocess": _is_needed, "train": is_saved_model_file})
    dataset = Dataset(*_read_input(request.inputs["preprocess"], DatasetFigures))
    challenger = Challenger(*_read_input(request.inputs["train"], TrainingFigures))
    champion = None
    if entry := request.inputs.get("champion"):
        champion = Champion(*_read_input(fetch_version(entry), ModelFigures))
    _validate_challenger(dataset, challenger)
    _validate_test_split(dataset, request)
    for artifact, files in (
        (dataset, [file for file in dataset.manifest.files if _is_needed(file.path)]),
        (challenger, list_saved_model_files(challenger.manifest)),
        (champion, champion.manifest.files if champion else []),
    ):
        if artifact:
            check_files(open_path(artifact.uri), artifact.manifest, files)
    return Inputs(dataset, challenger, champion)


def _is_needed(path: str) -> bool:
    """Returns whether an evaluation reads a file of its data set."""
    return path.startswith("test-") or path in _DESCRIPTION


def _read_input(entry: Input, figures: type[FiguresT]) -> tuple[str, Manifest, FiguresT]:
    manifest = read_input(entry)
    return entry.uri, manifest, figures.model_validate(manifest.figures)


def _validate_test_split(dataset: Dataset, request: Request) -> None:
    """Checks that the test split is the pinned one.

    The manifest's own digest covers its files, but not the removal of examples from them. This
    digest covers both.
    """
    pinned = request.fingerprint.inputs[TEST_SPLIT]
    found = compute_split_digest(dataset.manifest, "test")
    if found != pinned:
        raise DataError(
            f"{dataset.uri}: the digest of its test split is {found}, "
            f"but {pinned} is pinned in this evaluation's request. Start a new run."
        )


def _validate_challenger(dataset: Dataset, challenger: Challenger) -> None:
    if challenger.manifest.inputs["preprocess"].digest != dataset.manifest.digest:
        raise DataError(
            f"{challenger.uri}: the challenger was trained on another data set than {dataset.uri} "
            "and may have seen its test examples. Start a new run."
        )
    if not dataset.num_test_examples:
        raise DataError(
            f"{dataset.uri}: the test split is empty. Raise preprocess.split.test or add data."
        )
