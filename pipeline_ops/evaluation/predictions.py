"""Runs the models on the test examples, batch by batch, in one pass over the shards.

Only a few numbers of each example stay in memory. The probabilities of all classes go to a file
without a name, so memory does not limit the size of the test split. Only the images of the worst
mistakes and of the greatest surprises are kept.

Legend: N examples, C classes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from pipeline_ops.config.evaluate import Evaluate, Slice
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.groups import compute_slice_values, join_slice_values
from pipeline_ops.evaluation.inputs import Inputs
from pipeline_ops.evaluation.metrics import ModelPredictions, find_in_top_k
from pipeline_ops.input.saved_model_client import (
    EncodedBatch,
    SavedModelClient,
    read_encoded_batches,
)
from pipeline_ops.storage.local_files import translate_write_errors

NUM_SHOWN = 24
"""Mistakes, and surprises, that a report shows as pictures."""
NUM_PREDICTIONS = 3
"""The number of test images in `predictions.png`."""
_NUM_WARMUP_CALLS, _NUM_TIMED_CALLS, _MAX_TIMED_IMAGES = 5, 50, 50
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
    """The labels, int64 [N], and the answers of each model, in the order of the shards."""

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
    top_k: int,
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
    buffers = [_PredictionBuffer(num_examples, num_classes, top_k, scratch_folder) for _ in models]
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
        outputs = []
        for model, buffer in zip(models, buffers, strict=True):
            probabilities, classes = model.classify(batch)
            # A diverged network gives non-finite probabilities. The gate judges the result.
            finite = np.nan_to_num(probabilities, nan=0.0, posinf=1.0, neginf=0.0)
            buffer.write(batch.labels, finite, classes)
            outputs.append((finite, classes))
        labels.append(batch.labels)
        for name, found in compute_slice_values(batch, slices).items():
            values[name].append(found)
        worst.add(batch, outputs, _rank_mistakes(batch.labels, outputs))
        surprises.add(batch, outputs, _rank_surprises(batch.labels, outputs))
        samples.add(batch, outputs, np.array([rank_key(key) for key in batch.keys]))
        report(done)
    if done != num_examples:
        raise DataError(
            f"the test shards hold {'more' if done > num_examples else 'fewer'} examples than the "
            f"{num_examples} of the manifest. Run preprocess again."
        )
    return Predictions(
        np.concatenate(labels),
        [buffer.to_predictions() for buffer in buffers],
        join_slice_values(values, slices),
        worst.examples,
        surprises.examples,
        samples.examples,
    )


class _PredictionBuffer:
    """The answers of one model, batch by batch.

    The probabilities are written by class, into a file that disappears when it is no longer in use.
    """

    def __init__(self, num_examples: int, num_classes: int, top_k: int, scratch_folder: Path):
        with (
            translate_write_errors(scratch_folder),
            tempfile.TemporaryFile(dir=scratch_folder) as file,
        ):
            # Without this, a full disk would later kill the process by a signal.
            os.posix_fallocate(file.fileno(), 0, 4 * num_classes * num_examples)
            self._scores = np.memmap(file, np.float32, "w+", shape=(num_classes, num_examples))
        self._top_k, self._done = top_k, 0
        self._columns: list[tuple[np.ndarray, ...]] = []

    def write(self, labels: np.ndarray, probabilities: np.ndarray, classes: np.ndarray) -> None:
        self._scores[:, self._done : self._done + len(labels)] = probabilities.T
        is_in_top_k = find_in_top_k(probabilities, labels, self._top_k)
        confidences = probabilities[np.arange(len(labels)), classes].astype(np.float64)
        self._columns.append((classes, is_in_top_k, np.clip(confidences, 0.0, 1.0)))
        self._done += len(labels)

    def to_predictions(self) -> ModelPredictions:
        classes, is_in_top_k, confidences = (
            np.concatenate(column) for column in zip(*self._columns, strict=True)
        )
        return ModelPredictions(classes, is_in_top_k, confidences, self._scores)


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


def rank_key(key: str) -> float:
    """Returns a number from 0 to 1 by which to draw examples at random, always the same ones."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=6).digest()) / 2**48


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


def _validate_labels(batch: EncodedBatch, num_classes: int) -> None:
    unknown = np.flatnonzero((batch.labels < 0) | (batch.labels >= num_classes))
    if unknown.size:
        raise DataError(
            f"test example {batch.keys[unknown[0]]} has the label {batch.labels[unknown[0]]}, "
            f"but there are {num_classes} classes. Run preprocess again."
        )


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
