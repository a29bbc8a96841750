"""Runs every model on the same test examples, batch by batch, in one pass over the shards.

Only a few numbers of each example stay in memory. The probabilities of all classes go to a file
without a name, so memory does not limit the size of the test split. Only the images of the worst
mistakes and of the greatest surprises are kept.

Legend: N examples, C classes.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from pipeline_ops.config.evaluate import Slice
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.metrics import ModelPredictions
from pipeline_ops.evaluation.pictures import NUM_PREDICTIONS, NUM_SHOWN, rank_key
from pipeline_ops.evaluation.scores import compute_label_ranks
from pipeline_ops.evaluation.slices import compute_slice_values, join_slice_values
from pipeline_ops.input.saved_model_client import EncodedBatch, SavedModelClient
from pipeline_ops.storage.local_files import translate_write_errors

Output = tuple[np.ndarray, np.ndarray]
"""The answers of a model to a batch: probabilities float32 [N, C] and classes int64 [N]."""


@dataclasses.dataclass(frozen=True)
class ShownExample:
    """A test example that the report shows.

    `label` and the answers are class indexes. Names without `champion` are about the challenger.
    """

    key: str
    label: int
    prediction: int
    confidence: float
    """The probability of the answer."""
    label_probability: float
    image: bytes
    champion_prediction: int | None = None
    champion_label_probability: float | None = None

    @property
    def is_right(self) -> bool:
        return self.prediction == self.label


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The labels, int64 [N], and a ModelPredictions for each model, in the order of the shards."""

    labels: np.ndarray
    models: list[ModelPredictions]
    slices: dict[str, np.ndarray]
    """The value (text, [N]) of every example, by slice."""
    worst_mistakes: list[ShownExample]
    """The worst mistakes of the first model, the most confident first."""
    surprises: list[ShownExample]
    """The greatest surprises first.

    With a champion, they are the examples that the two models judge most differently. Without one,
    they are the right answers with the lowest confidence.
    """
    samples: list[ShownExample]
    """A few examples, drawn by their keys alone."""


def predict_all(
    models: Sequence[SavedModelClient],
    batches: Iterable[EncodedBatch],
    num_examples: int,
    num_classes: int,
    slices: Sequence[Slice],
    scratch_folder: Path,
    report: Callable[[int], None],
) -> Predictions:
    """Runs every model on every example.

    Args:
      num_examples: N, the number that the shards must hold.
      scratch_folder: a folder on the disk for the probabilities.
      report: called after each batch with the number of examples so far.

    Raises:
      DataError: a model cannot process an image, a label has no class, or the number of examples is
        different.
    """
    buffers = [_PredictionBuffer(num_examples, num_classes, scratch_folder) for _ in models]
    labels: list[np.ndarray] = []
    values: dict[str, list[list[str]]] = {part.title: [] for part in slices}
    worst, surprises = _TopExamples(NUM_SHOWN), _TopExamples(NUM_SHOWN)
    samples = _TopExamples(NUM_PREDICTIONS)
    done = 0
    for batch in batches:
        _validate_labels(batch, num_classes)
        done += len(batch.keys)
        if done > num_examples:
            break
        outputs = [_replace_non_finite(*model.classify(batch)) for model in models]
        for buffer, output in zip(buffers, outputs, strict=True):
            buffer.write(batch.labels, *output)
        labels.append(batch.labels)
        for name, found in compute_slice_values(batch, slices).items():
            values[name].append(found)
        worst.add(batch, outputs, _rank_mistakes(batch.labels, outputs))
        surprises.add(batch, outputs, _rank_surprises(batch.labels, outputs))
        samples.add(batch, outputs, np.array([rank_key(key) for key in batch.keys]))
        report(done)
    _validate_count(done, num_examples)
    return Predictions(
        np.concatenate(labels),
        [buffer.to_predictions() for buffer in buffers],
        join_slice_values(values, slices),
        worst.examples,
        surprises.examples,
        samples.examples,
    )


def _replace_non_finite(probabilities: np.ndarray, classes: np.ndarray) -> Output:
    """Replaces the non-finite probabilities of a diverged network. The gate judges the result."""
    return np.nan_to_num(probabilities, nan=0.0, posinf=1.0, neginf=0.0), classes


class _PredictionBuffer:
    """The answers of one model, batch by batch.

    The probabilities are written by class, into a file that disappears when it is no longer in use.
    """

    def __init__(self, num_examples: int, num_classes: int, scratch_folder: Path):
        with (
            translate_write_errors(scratch_folder),
            tempfile.TemporaryFile(dir=scratch_folder) as file,
        ):
            # Without this, a full disk would later kill the process by a signal.
            os.posix_fallocate(file.fileno(), 0, 4 * num_classes * num_examples)
            self._scores = np.memmap(file, np.float32, "w+", shape=(num_classes, num_examples))
        self._columns: list[tuple[np.ndarray, ...]] = []
        self._done = 0

    def write(self, labels: np.ndarray, probabilities: np.ndarray, classes: np.ndarray) -> None:
        self._scores[:, self._done : self._done + len(labels)] = probabilities.T
        confidences = probabilities[np.arange(len(labels)), classes].astype(np.float64)
        self._columns.append((classes, compute_label_ranks(probabilities, labels), confidences))
        self._done += len(labels)

    def to_predictions(self) -> ModelPredictions:
        classes, ranks, confidences = (
            np.concatenate(column) for column in zip(*self._columns, strict=True)
        )
        return ModelPredictions(classes, ranks, np.clip(confidences, 0.0, 1.0), self._scores)


class _TopExamples:
    """The examples with the largest values.

    Keys settle ties, so that the result does not depend on the order of the shards.
    """

    def __init__(self, count: int):
        self._count = count
        self._ranked: list[tuple[float, ShownExample]] = []

    @property
    def examples(self) -> list[ShownExample]:
        return [shown for _, shown in self._ranked]

    def add(self, batch: EncodedBatch, outputs: Sequence[Output], values: np.ndarray) -> None:
        """Adds the examples of a batch. Those with a negative value do not count."""
        count = min(self._count, len(values))
        smallest = max(0.0, np.partition(values, -count)[-count])
        found = [
            (float(values[i]), _to_shown_example(batch, outputs, int(i)))
            for i in np.flatnonzero(values >= smallest)
        ]
        ranked = sorted([*self._ranked, *found], key=lambda each: (-each[0], each[1].key))
        self._ranked = ranked[: self._count]


def _rank_mistakes(labels: np.ndarray, outputs: Sequence[Output]) -> np.ndarray:
    """Returns the confidence of each mistake of the first model, -1 for a right answer."""
    probabilities, classes = outputs[0]
    return np.where(classes != labels, probabilities[np.arange(len(labels)), classes], -1.0)


def _rank_surprises(labels: np.ndarray, outputs: Sequence[Output]) -> np.ndarray:
    """Returns the absolute difference between the label's probabilities of both models.

    Without a champion, it is the uncertainty of a right answer, and -1 for a mistake.
    """
    rows = np.arange(len(labels))
    first, *others = (probabilities[rows, labels].astype(float) for probabilities, _ in outputs)
    return np.abs(first - others[0]) if others else np.where(outputs[0][1] == labels, 1 - first, -1)


def _to_shown_example(batch: EncodedBatch, outputs: Sequence[Output], i: int) -> ShownExample:
    label = int(batch.labels[i])
    predictions = [int(classes[i]) for _, classes in outputs]
    label_probabilities = [float(probabilities[i, label]) for probabilities, _ in outputs]
    return ShownExample(
        batch.keys[i],
        label,
        predictions[0],
        float(outputs[0][0][i, predictions[0]]),
        label_probabilities[0],
        batch.images[i],
        *predictions[1:],
        *label_probabilities[1:],
    )


def _validate_count(found: int, expected: int) -> None:
    if found != expected:
        raise DataError(
            f"the test shards hold {'more' if found > expected else 'fewer'} examples than the "
            f"{expected} of the manifest. Run preprocess again."
        )


def _validate_labels(batch: EncodedBatch, num_classes: int) -> None:
    unknown = np.flatnonzero((batch.labels < 0) | (batch.labels >= num_classes))
    if unknown.size:
        raise DataError(
            f"test example {batch.keys[unknown[0]]} has the label {batch.labels[unknown[0]]}, "
            f"but there are {num_classes} classes. Run preprocess again."
        )
