"""The inputs of an evaluation: data set, challenger and champion, checked against manifests.

Nothing else in the storage affects the result. A file that differs from its manifest is refused
by name, before a model reads it. A test split is also refused if it is not the one that the request
pins.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

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
from pipeline_ops.config.evaluate import Evaluate
from pipeline_ops.errors import DataError
from pipeline_ops.input.saved_model_client import SavedModelClient, read_encoded_batches
from pipeline_ops.jobs.local_inputs import use_local_inputs
from pipeline_ops.jobs.request import Request
from pipeline_ops.registry.versions import fetch_version
from pipeline_ops.storage.open_store import open_path

_SAVED_MODEL_PARTS = ("saved_model.pb", "fingerprint.pb", "variables", "assets")
"""The parts of a SavedModel. A version's folder may hold other formats next to them."""
_NUM_WARMUP_CALLS, _NUM_TIMED_CALLS, _MAX_TIMED_IMAGES = 5, 50, 50
FiguresT = TypeVar("FiguresT", bound=BaseModel)


@dataclasses.dataclass(frozen=True)
class Artifact(Generic[FiguresT]):
    uri: str
    manifest: Manifest
    figures: FiguresT

    @property
    def folder(self) -> Path:
        return Path(self.uri).parent


class EvaluatedModel(NamedTuple):
    """A SavedModel to run, and its name in messages."""

    name: str
    saved_model: Path
    num_bytes: int


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of an evaluation. There may be no champion yet."""

    dataset: Artifact[DatasetFigures]
    challenger: Artifact[TrainingFigures]
    champion: Artifact[ModelFigures] | None

    @property
    def test_shards(self) -> list[str]:
        return list_shard_paths(self.dataset.uri, self.dataset.manifest, "test")

    @property
    def removed_test_positions(self) -> tuple[tuple[int, ...], ...]:
        return list_removed_positions(self.dataset.manifest, "test")

    @property
    def num_test_examples(self) -> int:
        return self.dataset.figures.num_examples["test"]

    @property
    def class_names(self) -> list[str]:
        return self.dataset.figures.class_names

    @property
    def models(self) -> list[EvaluatedModel]:
        """The challenger, and the champion if it has the same classes."""
        challenger = self.challenger
        models = [_describe_model("the challenger", challenger, challenger.folder / SAVED_MODEL)]
        if self.champion and not self.no_champion_reason:
            champion = self.champion
            models.append(_describe_model(self._champion_name, champion, champion.folder))
        return models

    @property
    def no_champion_reason(self) -> str:
        """The reason for an evaluation without a champion, as the end of a sentence, or ""."""
        if self.champion is None:
            return "there is no champion to compare it with"
        known, wanted = self.champion.figures.class_names, self.class_names
        if known == wanted:
            return ""
        unknown, missing = sorted(set(wanted) - set(known)), sorted(set(known) - set(wanted))
        parts = [f"does not know {', '.join(unknown)}"] if unknown else []
        parts += [f"knows {', '.join(missing)}, which the data set lacks"] if missing else []
        return f"{self._champion_name} {' and '.join(parts) or 'has the classes in another order'}"

    @property
    def _champion_name(self) -> str:
        return f"the champion (version {self.champion.figures.version})" if self.champion else ""


def read_inputs(request: Request) -> Inputs:
    """Reads and checks the inputs.

    Raises:
      DataError: an artifact is gone, changed or damaged, or does not belong to the others.
    """
    request = use_local_inputs(request, {"preprocess": _is_needed, "train": is_saved_model_file})
    dataset = _read_artifact(request.inputs["preprocess"], DatasetFigures)
    challenger = _read_artifact(request.inputs["train"], TrainingFigures)
    entry = request.inputs.get("champion")
    champion = _read_artifact(fetch_version(entry), ModelFigures) if entry else None
    inputs = Inputs(dataset, challenger, champion)
    if challenger.manifest.inputs["preprocess"].digest != dataset.manifest.digest:
        raise DataError(
            f"{challenger.uri}: the challenger was trained on another data set than {dataset.uri} "
            "and may have seen its test examples. Start a new run."
        )
    if not inputs.num_test_examples:
        raise DataError(
            f"{dataset.uri}: the test split is empty. Raise preprocess.split.test or add data."
        )
    # The manifest's own digest covers its files, but not the removal of examples from them.
    pinned = request.fingerprint.inputs[TEST_SPLIT]
    found = compute_split_digest(dataset.manifest, "test")
    if found != pinned:
        raise DataError(
            f"{dataset.uri}: the digest of its test split is {found}, "
            f"but {pinned} is pinned in this evaluation's request. Start a new run."
        )
    needed = [file for file in dataset.manifest.files if _is_needed(file.path)]
    check_files(open_path(dataset.uri), dataset.manifest, needed)
    trained = list_saved_model_files(challenger.manifest)
    check_files(open_path(challenger.uri), challenger.manifest, trained)
    if champion:
        check_files(open_path(champion.uri), champion.manifest, champion.manifest.files)
    return inputs


def _is_needed(path: str) -> bool:
    """Returns whether an evaluation reads a file of its data set."""
    return path.startswith("test-") or path in (QUARANTINE, INDEX, STATISTICS)


def _read_artifact(entry: Input, figures: type[FiguresT]) -> Artifact[FiguresT]:
    manifest = read_input(entry)
    return Artifact(entry.uri, manifest, figures.model_validate(manifest.figures))


def _describe_model(
    name: str, artifact: Artifact[TrainingFigures] | Artifact[ModelFigures], saved_model: Path
) -> EvaluatedModel:
    num_bytes = sum(
        file.num_bytes
        for file in artifact.manifest.files
        if file.path.removeprefix(f"{SAVED_MODEL}/").split("/")[0] in _SAVED_MODEL_PARTS
    )
    return EvaluatedModel(name, saved_model, num_bytes)


def measure_models(
    config: Evaluate, inputs: Inputs, clients: Sequence[SavedModelClient]
) -> list[dict[str, float]]:
    """Returns size and latency of each model as it is served.

    A latency depends on the clock, so it is measured only if a rule needs it. The models take turns
    in a measurement, so that load affects all of them alike.
    """
    measures = [{"model_bytes": float(model.num_bytes)} for model in inputs.models]
    if not config.needs_latency:
        return measures
    images = next(
        read_encoded_batches(inputs.test_shards, _MAX_TIMED_IMAGES, inputs.removed_test_positions)
    ).images
    times: list[list[float]] = [[] for _ in clients]
    for call in range(_NUM_WARMUP_CALLS + _NUM_TIMED_CALLS):
        for client, durations in zip(clients, times, strict=True):
            begin = time.perf_counter()
            index = call % len(images)
            client.call_signature("serving_default", image_bytes=images[index : index + 1])
            durations.append(1e3 * (time.perf_counter() - begin))
    for found, durations in zip(measures, times, strict=True):
        found["latency_milliseconds"] = statistics.median(durations[_NUM_WARMUP_CALLS:])
    return measures
