"""The table of a classifier's answers to the test examples, page by page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from pipeline_ops.contract.predictions import Answer, AnswersFile, read_answers
from pipeline_ops.contract.thresholds import ThresholdCounts
from pipeline_ops.storage.store_path import StorePath

ROWS = 50
Shown = Literal["all", "wrong", "new"]
"""Which answers: all, wrong ones, or wrong ones that the version in service had right."""


@dataclasses.dataclass(frozen=True)
class PredictionRow:
    key: str
    label: str
    answer: str
    confidence: float
    label_probability: float | None
    is_right: bool
    champion_answer: str
    """"" without a champion."""


@dataclasses.dataclass(frozen=True)
class PredictionsView:
    """A page of the table. `num_found` counts the rows of all pages."""

    rows: list[PredictionRow]
    num_found: int
    num_examples: int
    has_more: bool


def view_predictions(
    file: StorePath,
    counts: ThresholdCounts,
    page: int = 0,
    show: Shown = "all",
    label: int | None = None,
) -> PredictionsView:
    """Reads a page of the answers, mistakes with the most probable one first.

    `label` is the class of the examples, or None for all. Raises DataError for a damaged file.
    """
    found = read_answers(file, len(counts.class_names))
    rows = _select(found, show, label)
    if show != "all":
        confidences = found.read_confidences()
        rows.sort(key=lambda row: -confidences[row])
    shown = rows[page * ROWS : (page + 1) * ROWS]
    return PredictionsView(
        rows=list(_iterate_rows(found, counts.class_names, shown)),
        num_found=len(rows),
        num_examples=len(found.labels),
        has_more=len(rows) > (page + 1) * ROWS,
    )


def _select(found: AnswersFile, show: Shown, label: int | None) -> list[int]:
    """Returns the chosen rows in the order of the file. Nothing is new without a champion."""
    labels, answers = found.labels, found.answers
    rows: Iterable[int] = range(len(labels))
    if label is not None:
        rows = [row for row in rows if labels[row] == label]
    if show != "all":
        rows = [row for row in rows if answers[row] != labels[row]]
    if show == "new":
        before = found.champion_answers or answers
        rows = [row for row in rows if before[row] == labels[row]]
    return list(rows)


def _iterate_rows(
    found: AnswersFile, names: list[str], rows: Iterable[int]
) -> Iterable[PredictionRow]:
    for row in rows:
        answer: Answer = found.read_answer(row)
        label, champion = found.labels[row], found.champion_answers
        yield PredictionRow(
            key=found.read_key(row),
            label=names[label],
            answer=names[answer.index],
            confidence=answer.confidence,
            label_probability=answer.label_probability,
            is_right=answer.index == label,
            champion_answer=names[champion[row]] if champion else "",
        )
