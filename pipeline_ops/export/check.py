"""Whether the SavedModel that was written is the model that was trained.

Training leaves real test examples, and the probabilities that the model in memory gave for them. Here, in a process
that has never built the model, the SavedModel must give the same ones.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from pipeline_ops.contracts.errors import DataError
from pipeline_ops.contracts.figures import REFERENCE_EXAMPLES, REFERENCE_OUTPUTS, SAVED_MODEL
from pipeline_ops.input.served import ServedModel, read_encoded

_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Two sets of probabilities for the same images: how many, the largest difference, the share of equal answers."""

    num_checked: int
    max_difference: float
    top1_agreement: float


def check_candidate(training: Path, num_classes: int, tolerance: float) -> Agreement:
    """Compares the candidate in a training's artifact with its references.

    Raises:
      DataError: it can't be loaded, or it is not the trained model.
    """
    references = _read_references(training / REFERENCE_OUTPUTS)
    model = ServedModel(training / SAVED_MODEL, "the candidate", num_classes)
    batches = read_encoded([str(training / REFERENCE_EXAMPLES)], _BATCH)
    answers = [model.classify(batch)[0] for batch in batches]
    return compare(references, np.concatenate([np.empty((0, num_classes), np.float32), *answers]), tolerance)


def compare(references: np.ndarray, answers: np.ndarray, tolerance: float) -> Agreement:
    """Raises DataError if the probabilities (float32 [N, C]) differ by more than the tolerance, or an answer differs."""
    if references.shape != answers.shape or not len(references):
        raise DataError(f"{REFERENCE_OUTPUTS} has the shape {references.shape}, {REFERENCE_EXAMPLES} gives {answers.shape}; train again")
    agreement = Agreement(len(references), float(np.abs(references - answers).max()),
                          float(np.mean(references.argmax(axis=-1) == answers.argmax(axis=-1))))
    if not (agreement.max_difference <= tolerance and agreement.top1_agreement == 1.0):  # so that "not a number" is refused, too
        raise DataError(f"the SavedModel is not the model that was trained: on {agreement.num_checked} test images a probability differs by "
                        f"{agreement.max_difference:.3g}, where export.tolerance allows {tolerance:g}, and {agreement.top1_agreement:.1%} of the "
                        "answers are the same; nothing was published")
    return agreement


def _read_references(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: can't be read: {error}; train again") from error
