"""The trained model that an export publishes, with its evaluation, checked against manifests."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pipeline_ops.artifacts.damage import check_files
from pipeline_ops.artifacts.manifest import Input, Manifest, read_input
from pipeline_ops.artifacts.results import (
    REFERENCE_EXAMPLES,
    REFERENCE_OUTPUTS,
    EvaluationFigures,
    TrainingFigures,
    is_saved_model_file,
)
from pipeline_ops.errors import DataError
from pipeline_ops.jobs.local_inputs import use_local_inputs
from pipeline_ops.jobs.request import Request
from pipeline_ops.storage.open_store import open_path


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """The trained model and its evaluation."""

    folder: Path
    training: Manifest
    figures: TrainingFigures
    evaluation: EvaluationFigures
    evaluation_folder: Path

    @property
    def dataset(self) -> Input:
        return self.training.inputs["preprocess"]


def _is_needed(path: str) -> bool:
    """Returns whether an export reads a file of its training."""
    return is_saved_model_file(path) or path in (REFERENCE_EXAMPLES, REFERENCE_OUTPUTS)


def read_trained_model(request: Request) -> TrainedModel:
    """Reads and checks the model.

    Raises:
      DataError: an artifact is damaged, or the model may not be published.
    """
    request = use_local_inputs(request, {"train": _is_needed, "evaluate": lambda path: True})
    train, evaluate = request.inputs["train"], request.inputs["evaluate"]
    training, evaluation = read_input(train), read_input(evaluate)
    figures = EvaluationFigures.model_validate(evaluation.figures)
    if evaluation.inputs["train"].digest != train.digest:
        raise DataError(
            f"{evaluate.uri} is the evaluation of another model than {train.uri}. Start a new run."
        )
    if not figures.gate_passed:
        raise DataError(f"{evaluate.uri}: the gate was not passed, so nothing is published.")
    needed = [file for file in training.files if _is_needed(file.path)]
    check_files(open_path(train.uri), training, needed)
    check_files(open_path(evaluate.uri), evaluation, evaluation.files)
    return TrainedModel(
        Path(train.uri).parent,
        training,
        TrainingFigures.model_validate(training.figures),
        figures,
        Path(evaluate.uri).parent,
    )
