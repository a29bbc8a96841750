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
from pipeline_ops.evaluation.metrics import ModelAnswer
from pipeline_ops.evaluation.scores import label_ranks
from pipeline_ops.evaluation.slices import join_values, values_of
from pipeline_ops.input.saved_model_client import EncodedBatch, ServedModel
from pipeline_ops.storage.atomic import names_file


@dataclasses.dataclass(frozen=True)
class DrawnBox:
    """A box on a picture.

    It has corners as fractions of the image, a text, and a flag for truth or answer.
    """

    ymin: float
    xmin: float
    ymax: float
    xmax: float
    text: str
    is_truth: bool


@dataclasses.dataclass(frozen=True)
class Shown:
    """A test example that the report shows.

    `label` and the answers are class indexes. Probabilities are the challenger's unless the name
    says otherwise.
    """

    key: str
    label: int
    answer: int
    confidence: float
    """The probability of the answer."""
    label_probability: float
    image: bytes
    champion_answer: int | None = None
    champion_label_probability: float | None = None
    boxes: tuple[DrawnBox, ...] = ()
    """The boxes to draw, for a detector."""

    @property
    def is_right(self) -> bool:
        return self.answer == self.label

    @property
    def surprise(self) -> float | None:
        """The absolute difference between the label's probabilities of challenger and champion.

        Without a champion, it is the uncertainty of a right answer, and None for a wrong one.
        """
        if self.champion_label_probability is None:
            return 1.0 - self.confidence if self.is_right else None
        return abs(self.label_probability - self.champion_label_probability)


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The labels, int64 [N], and a ModelAnswer for each model, in the order of the shards."""

    labels: np.ndarray
    models: list[ModelAnswer]
    slices: dict[str, np.ndarray]
    """The value (text, [N]) of every example, by slice."""
    worst_mistakes: list[Shown]
    """The worst mistakes of the first model, the most confident first."""
    surprises: list[Shown]
    """The greatest surprises first.

    With a champion, they are the examples that the two models judge most differently. Without one,
    they are the right answers with the lowest confidence.
    """


def ask(
    models: Sequence[ServedModel],
    batches: Iterable[EncodedBatch],
    num_examples: int,
    num_classes: int,
    slices: Sequence[Slice],
    num_shown: int,
    scratch: Path,
    report: Callable[[int], None],
) -> Predictions:
    """Runs every model on every example.

    Args:
      num_examples: N, the number that the shards must hold.
      num_shown: the number of the first model's mistakes, and of the surprises, to keep.
      scratch: a folder on the disk for the probabilities.
      report: called after each batch with the number of examples so far.

    Raises:
      DataError: a model cannot process an image, a label has no class, or the number of examples is
        different.
    """
    sheets = [_PredictionBuffer(num_examples, num_classes, scratch) for _ in models]
    labels: list[np.ndarray] = []
    values: dict[str, list[list[str]]] = {part.title: [] for part in slices}
    worst, surprises = (
        _Top(num_shown, lambda shown: shown.confidence),
        _Top(num_shown, lambda shown: shown.surprise),
    )
    done = 0
    for batch in batches:
        _refuse_unknown_labels(batch, num_classes)
        if done + len(batch.keys) > num_examples:
            raise DataError(
                f"the test shards hold more than the {num_examples} examples that the manifest says"
            )
        answers = [_finite(model.classify(batch)) for model in models]
        for sheet, (probabilities, classes) in zip(sheets, answers, strict=True):
            sheet.write(batch.labels, probabilities, classes)
        labels.append(batch.labels)
        for name, found in values_of(batch, slices).items():
            values[name].append(found)
        if num_shown:
            examples = _candidates(batch, answers, num_shown)
            worst.add(shown for shown in examples if not shown.is_right)
            surprises.add(shown for shown in examples if shown.surprise is not None)
        done += len(batch.keys)
        report(done)
    if done != num_examples:
        raise DataError(f"the test shards hold {done} examples, the manifest says {num_examples}")
    return Predictions(
        np.concatenate(labels),
        [sheet.answer() for sheet in sheets],
        join_values(values, slices),
        worst.kept,
        surprises.kept,
    )


def _finite(answer: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Replaces the non-finite probabilities of a diverged network. The gate judges the result."""
    probabilities, classes = answer
    return np.nan_to_num(probabilities, nan=0.0, posinf=1.0, neginf=0.0), classes


class _PredictionBuffer:
    """The answers of one model, batch by batch.

    The probabilities are written by class, into a file that disappears when it is no longer in use.
    """

    def __init__(self, num_examples: int, num_classes: int, scratch: Path):
        with names_file(scratch), tempfile.TemporaryFile(dir=scratch) as file:
            os.posix_fallocate(
                file.fileno(), 0, 4 * num_classes * num_examples
            )  # otherwise a full disk would later kill the process by a signal
            self._scores = np.memmap(file, np.float32, "w+", shape=(num_classes, num_examples))
        self._columns: list[tuple[np.ndarray, ...]] = []
        self._done = 0

    def write(self, labels: np.ndarray, probabilities: np.ndarray, classes: np.ndarray) -> None:
        self._scores[:, self._done : self._done + len(labels)] = probabilities.T
        confidences = probabilities[np.arange(len(labels)), classes].astype(np.float64)
        self._columns.append((classes, label_ranks(probabilities, labels), confidences))
        self._done += len(labels)

    def answer(self) -> ModelAnswer:
        classes, ranks, confidences = (
            np.concatenate(column) for column in zip(*self._columns, strict=True)
        )
        return ModelAnswer(classes, ranks, np.clip(confidences, 0.0, 1.0), self._scores)


class _Top:
    """The examples with the largest values.

    Keys settle ties, so that the result does not depend on the order of the shards.
    """

    def __init__(self, count: int, value: Callable[[Shown], float]):
        self._count, self._value = count, value
        self.kept: list[Shown] = []

    def add(self, examples: Iterable[Shown]) -> None:
        self.kept = sorted(
            [*self.kept, *examples], key=lambda shown: (-self._value(shown), shown.key)
        )[: self._count]


def _candidates(
    batch: EncodedBatch, answers: Sequence[tuple[np.ndarray, np.ndarray]], count: int
) -> list[Shown]:
    """Returns the examples of a batch that can be among the first `count` of all.

    The order is the confidence of a mistake, or the surprise.
    """
    (probabilities, classes), *champion = answers
    rows = np.arange(len(batch.labels))
    confidence, of_label, is_wrong = (
        probabilities[rows, classes],
        probabilities[rows, batch.labels],
        classes != batch.labels,
    )
    surprise = (
        np.abs(of_label - champion[0][0][rows, batch.labels])
        if champion
        else np.where(is_wrong, -1.0, 1.0 - confidence)
    )
    chosen = np.union1d(
        _largest(np.where(is_wrong, confidence, -1.0), count), _largest(surprise, count)
    )
    return [_shown(batch, answers, int(index)) for index in chosen]


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Returns the indexes of the `count` largest values, and of all that equal the last of them."""
    if len(values) <= count:
        return np.arange(len(values))
    return np.flatnonzero(values >= np.partition(values, -count)[-count])


def _shown(batch: EncodedBatch, answers: Sequence[tuple[np.ndarray, np.ndarray]], i: int) -> Shown:
    (probabilities, classes), *champion = answers
    label = int(batch.labels[i])
    theirs = [
        (int(their_classes[i]), float(their_probabilities[i, label]))
        for their_probabilities, their_classes in champion
    ]
    champion_answer, champion_probability = theirs[0] if theirs else (None, None)
    return Shown(
        batch.keys[i],
        label,
        int(classes[i]),
        float(probabilities[i, classes[i]]),
        float(probabilities[i, label]),
        batch.images[i],
        champion_answer,
        champion_probability,
    )


def _refuse_unknown_labels(batch: EncodedBatch, num_classes: int) -> None:
    unknown = np.flatnonzero((batch.labels < 0) | (batch.labels >= num_classes))
    if unknown.size:
        raise DataError(
            f"test example {batch.keys[unknown[0]]}: "
            f"its label is {batch.labels[unknown[0]]}, but there are {num_classes} classes"
        )
