"""The answers of a model by threshold: `thresholds.json` of an evaluation, and rates from it.

A classifier that answers only if its probability is high enough, and a detector that shows only
boxes with a high enough score, are counted alike. An answer names a class, has a score, and is
right or wrong. The file has counts alone, so that every rate has one formula, here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.contract.results import Figures
from pipeline_ops.pages.charts import Line

NUM_THRESHOLDS = 101
THRESHOLDS = tuple(number / 100 for number in range(NUM_THRESHOLDS))
MAX_MATRIX_CLASSES = 20
"""Confusions are counted by threshold for up to this number of classes."""
MAX_THRESHOLDS_BYTES = 32 << 20
_PRECISE = 0.99
_MIN_ANSWERS = 5

_Count = Annotated[int, Field(ge=0, le=2**53)]
_Index = Annotated[int, Field(ge=0, le=10**6)]
_Threshold = Annotated[int, Field(ge=0, lt=NUM_THRESHOLDS)]
_Histogram = Annotated[list[_Count], Field(min_length=NUM_THRESHOLDS, max_length=NUM_THRESHOLDS)]
"""Entry i counts scores from `THRESHOLDS[i]` to below the next threshold."""


class ClassRates(NamedTuple):
    """Counts of a class at one threshold, and the rates that they make.

    `answered` are the answers of the class that reach the threshold, `right` those of them that are
    right, and `support` all examples, or true boxes, of the class. A rate of nothing is None.
    """

    answered: int
    right: int
    support: int

    @property
    def precision(self) -> float | None:
        return self.right / self.answered if self.answered else None

    @property
    def recall(self) -> float | None:
        return self.right / self.support if self.support else None

    @property
    def f1(self) -> float | None:
        whole = self.support + self.answered
        return 2 * self.right / whole if whole else None


class ClassCounts(Figures):
    """The answers of one class by their scores."""

    support: _Count
    answered: _Histogram
    right: _Histogram

    def trace(self) -> list[ClassRates]:
        """Returns the rates at each of `THRESHOLDS`."""
        answered, right = (
            list(itertools.accumulate(reversed(counts)))[::-1]
            for counts in (self.answered, self.right)
        )
        return [ClassRates(*counts, self.support) for counts in zip(answered, right, strict=True)]


class ModelCounts(Figures):
    """The answers of one model, by class.

    A mistake is the class of an example, the class of the answer, the entry of the histograms, and
    the number of such examples. A detector, and a classifier of more than `MAX_MATRIX_CLASSES`
    classes, has no mistakes here.
    """

    classes: Annotated[list[ClassCounts], Field(min_length=1)]
    mistakes: list[tuple[_Index, _Index, _Threshold, _Count]] = []

    def trace_total(self) -> list[ClassRates]:
        """Returns the rates of all classes together at each of `THRESHOLDS`."""
        by_class = [each.trace() for each in self.classes]
        return [
            ClassRates(*map(sum, zip(*rates, strict=True))) for rates in zip(*by_class, strict=True)
        ]

    def trace_mean_f1(self) -> list[float]:
        """Returns the mean of F1 over the classes with examples, at each of `THRESHOLDS`."""
        traced = [each.trace() for each in self.classes if each.support]
        return [
            sum(rates.f1 or 0.0 for rates in each) / len(traced)
            for each in zip(*traced, strict=True)
        ] or [0.0] * NUM_THRESHOLDS

    def count_confusions(self) -> list[list[list[int]]]:
        """Returns the counts of examples by class, class of the answer, and threshold."""
        size = len(self.classes)
        cells = [[[0] * NUM_THRESHOLDS for _ in range(size)] for _ in range(size)]
        for label, answer, index, count in self.mistakes:
            cells[label][answer][index] += count
        for index, each in enumerate(self.classes):
            cells[index][index] = each.right
        return [[list(itertools.accumulate(reversed(cell)))[::-1] for cell in row] for row in cells]


class ThresholdCounts(Figures):
    """The answers of the challenger and, if there is one, of the champion.

    `start` is the threshold, in hundredths, at which the report counts.
    """

    task: Task
    class_names: list[Annotated[str, Field(max_length=10_000)]]
    num_examples: _Count
    start: _Threshold
    models: Annotated[list[ModelCounts], Field(min_length=1, max_length=2)]
    champion_version: int | None = None

    @model_validator(mode="after")
    def _check_classes(self) -> Self:
        size = len(self.class_names)
        for model in self.models:
            if len(model.classes) != size:
                raise ValueError(f"{len(model.classes)} classes, but {size} names")
            if any(max(label, answer) >= size for label, answer, *_ in model.mistakes):
                raise ValueError(f"a mistake is about a class that is not one of the {size}")
        return self

    @property
    def has_matrix(self) -> bool:
        return self.task == "classification" and len(self.class_names) <= MAX_MATRIX_CLASSES


def find_best_f1(model: ModelCounts) -> int:
    """Returns the lowest threshold with the largest mean F1, in hundredths."""
    values = model.trace_mean_f1()
    return values.index(max(values))


def find_precise(totals: Sequence[ClassRates]) -> int | None:
    """Returns the lowest threshold from which 99 % of the answers are right, in hundredths.

    Returns None if no threshold is high enough.
    """
    return next((i for i, rates in enumerate(totals) if (rates.precision or 0.0) >= _PRECISE), None)


class ThresholdCurves(NamedTuple):
    """The curves of a chart over `THRESHOLDS`, the challenger's on top."""

    title: str
    x_label: str
    y_label: str
    lines: list[Line]


def trace_curves(counts: ThresholdCounts) -> ThresholdCurves:
    """Returns what a threshold makes of the answers of each model.

    That is F1 of a detector, with the challenger's best as a point. Of a classifier, it is the
    share of right answers and, for the challenger, the share of examples that get an answer. A
    threshold that fewer than 5 answers reach has no share of right ones, which would be chance.
    """
    names = ("challenger", "champion")[: len(counts.models)]
    styles = ("validation", "champion")
    if counts.task == "detection":
        values = [model.trace_mean_f1() for model in counts.models]
        lines = [
            Line(name, style, list(zip(THRESHOLDS, each, strict=True)))
            for name, style, each in zip(names, styles, values, strict=False)
        ]
        best = find_best_f1(counts.models[0])
        point = Line(
            f"best: {THRESHOLDS[best]:.2f}", styles[0], [(THRESHOLDS[best], values[0][best])]
        )
        return ThresholdCurves(
            "F1 by score threshold",
            "score threshold",
            "F1, mean over classes",
            [*lines[::-1], point],
        )
    totals = [model.trace_total() for model in counts.models]
    right = [
        [
            (threshold, rates.precision)
            for threshold, rates in zip(THRESHOLDS, each, strict=True)
            if rates.precision is not None and rates.answered >= _MIN_ANSWERS
        ]
        for each in totals
    ]
    coverage = [rates.answered / max(1, counts.num_examples) for rates in totals[0]]
    lines = [
        Line(name, style, points) for name, style, points in zip(names, styles, right, strict=False)
    ]
    answered = Line("answered", "training", list(zip(THRESHOLDS, coverage, strict=True)))
    return ThresholdCurves(
        "Answers by least probability",
        "least probability",
        "precision, and share that is answered",
        [answered, *lines[::-1]],
    )
