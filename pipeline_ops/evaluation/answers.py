"""The questions and the answers: every model gets the same test examples, batch by batch, in one pass over the shards.

What is kept of an example is a few numbers, so the size of the test split is no matter of memory; only of the worst
mistakes the pictures are kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pipeline_ops.contracts.errors import DataError
from pipeline_ops.input.served import EncodedBatch, ServedModel


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A test example that the challenger took for something else. `label` and `answer` are indexes of classes."""

    key: str
    label: int
    answer: int
    confidence: float
    """The probability of the wrong answer."""
    label_probability: float
    image: bytes


@dataclasses.dataclass(frozen=True)
class Answers:
    """`labels` and, for each model, `classes`: int64 [N], in the order of the shards."""

    labels: np.ndarray
    classes: list[np.ndarray]
    worst_mistakes: list[Mistake]
    """Of the first model, the most confident first."""


def ask(models: Sequence[ServedModel], batches: Iterable[EncodedBatch], num_classes: int, num_mistakes: int,
        report: Callable[[int], None]) -> Answers:
    """Puts every example to every model.

    Args:
      num_mistakes: how many of the first model's mistakes are kept.
      report: is told the number of examples so far, after each batch.

    Raises:
      DataError: an image that a model can't take, or a label that there is no class for.
    """
    labels: list[np.ndarray] = []
    classes: list[list[np.ndarray]] = [[] for _ in models]
    worst: list[Mistake] = []
    done = 0
    for batch in batches:
        _refuse_unknown_labels(batch, num_classes)
        answers = [model.classify(batch) for model in models]
        labels.append(batch.labels)
        for kept, (_, answered) in zip(classes, answers, strict=True):
            kept.append(answered)
        worst = _worst([*worst, *_mistakes(batch, *answers[0])], num_mistakes)
        done += len(batch.keys)
        report(done)
    return Answers(np.concatenate(labels), [np.concatenate(kept) for kept in classes], worst)


def _mistakes(batch: EncodedBatch, probabilities: np.ndarray, classes: np.ndarray) -> list[Mistake]:
    probabilities = np.nan_to_num(probabilities)  # a network that has diverged; the gate will say what that is worth
    return [Mistake(key=batch.keys[i], label=int(batch.labels[i]), answer=int(classes[i]), confidence=float(probabilities[i, classes[i]]),
                    label_probability=float(probabilities[i, batch.labels[i]]), image=batch.images[i])
            for i in np.flatnonzero(classes != batch.labels)]


def _worst(mistakes: Iterable[Mistake], count: int) -> list[Mistake]:
    """By confidence; keys settle ties, so that the order does not depend on the order of the shards."""
    return sorted(mistakes, key=lambda mistake: (-mistake.confidence, mistake.key))[:count]


def _refuse_unknown_labels(batch: EncodedBatch, num_classes: int) -> None:
    unknown = np.flatnonzero((batch.labels < 0) | (batch.labels >= num_classes))
    if unknown.size:
        raise DataError(f"test example {batch.keys[unknown[0]]}: its label is {batch.labels[unknown[0]]}, but there are {num_classes} classes")
