"""Confidence intervals of the metrics, by bootstrap over the test examples.

Each draw resamples the test examples with replacement, and all figures are computed for each draw.
All models see the same draws, so the draws of a difference are paired: examples that are hard for
both models do not widen its interval. Examples with the same label and the same answers of all
models form one cell, and a draw is a multinomial over the cells. This is equivalent to drawing
examples and costs a thousandth of it.

Pure functions of numpy. Legend: N examples, C classes, K cells, B draws.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

_MAX_BLOCK_VALUES = 1 << 22
"""The maximum of values in one block of draws: 32 MB."""


@dataclasses.dataclass(frozen=True)
class BootstrapSamples:
    """The draws of one model.

    `metrics`: float64 [B] by name. `classes`: float64 [B, C] for precision, recall and f1.
    """

    metrics: dict[str, np.ndarray]
    classes: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class TopKPredictions:
    """The answers of one model to N examples.

    `classes`: int64. `is_in_top_k`: bool, true where the label is among the first k.
    """

    classes: np.ndarray
    is_in_top_k: np.ndarray


NUM_SAMPLES, SEED = 1000, 1
"""The draws of the test examples for every interval, and their seed."""


def draw_samples(
    labels: np.ndarray,
    models: Sequence[TopKPredictions],
    num_classes: int,
    samples: int = NUM_SAMPLES,
    seed: int = SEED,
) -> list[BootstrapSamples]:
    """Returns the draws of each model, paired. The same arguments give the same numbers."""
    answers = [column for model in models for column in (model.classes, model.is_in_top_k)]
    cells, counts = np.unique(np.stack([labels, *answers]), axis=1, return_counts=True)
    evaluators = [
        _SampleEvaluator(cells[0], cells[1 + 2 * i], cells[2 + 2 * i].astype(bool), num_classes)
        for i in range(len(models))
    ]
    blocks = [
        [evaluator.evaluate(weights) for evaluator in evaluators]
        for weights in _draw_weights(counts, samples, seed)
    ]
    return [_concatenate([block[i] for block in blocks]) for i in range(len(models))]


def compute_interval(draws: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Returns the percentile interval that holds the true value with this confidence."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(low), float(high)


def _draw_weights(counts: np.ndarray, samples: int, seed: int) -> Iterator[np.ndarray]:
    """Yields blocks of draws: int64 [b, K]. The block size does not change the numbers."""
    generator, total = np.random.default_rng(seed), int(counts.sum())
    rows = max(1, _MAX_BLOCK_VALUES // len(counts))
    for start in range(0, samples, rows):
        yield generator.multinomial(total, counts / total, size=min(rows, samples - start))


class _SampleEvaluator:
    """Turns weights of cells into the figures of one model."""

    def __init__(
        self, labels: np.ndarray, predictions: np.ndarray, is_in_top_k: np.ndarray, num_classes: int
    ):
        self._is_right, self._is_in_top_k = labels == predictions, is_in_top_k
        self._labels = _ClassAccumulator(labels, num_classes)
        self._predictions = _ClassAccumulator(predictions, num_classes)

    def evaluate(self, weights: np.ndarray) -> BootstrapSamples:
        """Returns the figures of each draw. `weights` is [b, K]."""
        right, total = weights * self._is_right, weights.sum(axis=1)
        support, found = self._labels.sum_by_class(weights), self._labels.sum_by_class(right)
        predicted = self._predictions.sum_by_class(weights)
        classes = {
            "precision": _divide(found, predicted),
            "recall": _divide(found, support),
            "f1": _divide(2 * found, support + predicted),
        }
        present = support > 0
        means = {
            f"macro_{name}": (values * present).sum(axis=1) / present.sum(axis=1)
            for name, values in classes.items()
        }
        return BootstrapSamples(
            {
                "accuracy": right.sum(axis=1) / total,
                "top_k_accuracy": (weights * self._is_in_top_k).sum(axis=1) / total,
                **means,
                "worst_class_recall": np.where(present, classes["recall"], np.inf).min(axis=1),
            },
            classes,
        )


class _ClassAccumulator:
    """Adds up columns that belong to the same class."""

    def __init__(self, classes: np.ndarray, num_classes: int):
        self._order = np.argsort(classes, kind="stable")
        self._classes, self._starts = np.unique(classes[self._order], return_index=True)
        self._num_classes = num_classes

    def sum_by_class(self, weights: np.ndarray) -> np.ndarray:
        sums = np.zeros((len(weights), self._num_classes))
        sums[:, self._classes] = np.add.reduceat(weights[:, self._order], self._starts, axis=1)
        return sums


def _divide(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    quotients = np.zeros_like(parts)
    np.divide(parts, wholes, out=quotients, where=wholes > 0)
    return quotients


def _concatenate(blocks: Sequence[BootstrapSamples]) -> BootstrapSamples:
    def concatenate(name: str) -> dict[str, np.ndarray]:
        return {
            key: np.concatenate([getattr(block, name)[key] for block in blocks])
            for key in getattr(blocks[0], name)
        }

    return BootstrapSamples(concatenate("metrics"), concatenate("classes"))
