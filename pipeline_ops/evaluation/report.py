"""The report of an evaluation: one self-contained HTML page, for a person who decides.

`render` is a pure function: the same evaluation gives the same bytes, without a clock or a run id.
The page runs no script and loads nothing, and its security policy says so. The template engine
escapes all text. The template and the style sheet are next to this file. `report_rows.py` makes the
rows of the tables.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pipeline_ops.artifacts.dataset import SPLITS, DatasetFigures
from pipeline_ops.artifacts.results import (
    PUBLICATION,
    EvaluationFigures,
    RuleVerdict,
    TrainingFigures,
)
from pipeline_ops.evaluation.leaks import Leaks
from pipeline_ops.evaluation.lineage import Lineage
from pipeline_ops.evaluation.metrics import Comparison, Curves, wilson_interval_95
from pipeline_ops.evaluation.pictures import data_uri
from pipeline_ops.evaluation.predictions import Shown
from pipeline_ops.evaluation.report_rows import (
    MAX_CLASS_ROWS,
    class_rows,
    confused_pairs,
    matrix,
    metric_rows,
    metric_title,
    score_charts,
    slice_tables,
    training_charts,
)
from pipeline_ops.pages.page import render_page

_MAX_REJECTED = 50
_MAX_MATRIX_CLASSES = 30
"""The largest confusion matrix that is shown.

A larger one is not readable. Its most frequent confusions are.
"""
_MAX_PAIRS = 12
_MAX_RULES = 12
"""The number of rules that are shown at once. Rules that do not hold are always shown."""


@dataclasses.dataclass(frozen=True)
class Background:
    """The contents of the pages of all tasks: the verdict, and the origin of the challenger."""

    pipeline: str
    figures: EvaluationFigures
    training: TrainingFigures
    dataset: DatasetFigures
    rejected: list[dict[str, str]]
    drift: list[dict[str, Any]] | None
    leaks: Leaks
    lineage: Lineage


@dataclasses.dataclass(frozen=True)
class ReportData(Background):
    """The contents of a classifier's page.

    `why_alone` says why there is no comparison, as the end of a sentence.
    """

    comparison: Comparison | None
    why_alone: str | None
    curves: list[Curves]
    mistakes: list[Shown]
    surprises: list[Shown]
    top_k: int
    bootstrap_samples: int


def read_rejected(quarantine: Path) -> list[dict[str, str]]:
    """Reads the first records of a data set's quarantine: {"key", "stage", "reason", "detail"}."""
    if not quarantine.exists():
        return []
    with open(quarantine, encoding="utf-8") as lines:
        return [
            {"detail": "", **json.loads(line)} for line in itertools.islice(lines, _MAX_REJECTED)
        ]


def render(data: ReportData) -> str:
    """Returns the page as text to be written in UTF-8."""
    figures, names = data.figures, data.dataset.class_names
    num_right = sum(row[index] for index, row in enumerate(figures.challenger.confusion))
    shown_rules, more_rules = _sorted_rules(figures.rules)
    return render_report(
        "report.html",
        data,
        data.top_k,
        interval=wilson_interval_95(num_right, figures.num_examples),
        rules=shown_rules,
        more_rules=more_rules,
        metrics=list(metric_rows(figures, data.top_k)),
        score_charts=score_charts(figures, data.curves, names),
        slices=slice_tables(figures),
        classes=class_rows(figures),
        num_hidden_classes=max(0, len(names) - MAX_CLASS_ROWS),
        empty_classes=[row.name for row in figures.challenger.classes if not row.support],
        matrix=matrix(figures.challenger) if len(names) <= _MAX_MATRIX_CLASSES else None,
        pairs=confused_pairs(figures.challenger, names)[:_MAX_PAIRS],
        mistakes=_pictures(data.mistakes),
        surprises=_pictures(data.surprises),
        num_mistakes=figures.num_examples - num_right,
        is_small=max(data.dataset.image_shape[:2]) <= 96,
    )


def render_report(template: str, data: Background, top_k: int = 0, **values: Any) -> str:
    """Renders a page from the parts that all tasks share, and the values of its own template."""
    here, is_passed = Path(__file__).parent, data.figures.gate_passed
    return render_page(
        here / template,
        [here / "report.css"],
        title=f"{data.pipeline}: gate {'passed' if is_passed else 'not passed'}",
        publication=Markup(PUBLICATION),  # noqa: S704 (a constant)
        data=data,
        figures=data.figures,
        splits=SPLITS,
        class_names=data.dataset.class_names,
        training_charts=training_charts(data.training),
        last_metrics=_last_metrics(data, top_k),
        **values,
    )


def _sorted_rules(rules: Sequence[RuleVerdict]) -> tuple[list[RuleVerdict], list[RuleVerdict]]:
    """Returns the rules that are shown at once, and the rules that are folded away.

    If there are more than `_MAX_RULES`, rules that hold are folded away.
    """
    if len(rules) <= _MAX_RULES:
        return list(rules), []
    failed, held = (
        [rule for rule in rules if not rule.passed],
        [rule for rule in rules if rule.passed],
    )
    room = max(0, _MAX_RULES - len(failed))
    return [*failed, *held[:room]], held[room:]


def _pictures(examples: Sequence[Shown]) -> list[dict[str, Any]]:
    return [{"shown": shown, "image": data_uri(shown.image)} for shown in examples]


def _last_metrics(data: Background, top_k: int) -> list[dict[str, Any]]:
    """Returns the metrics of the challenger next to those of the previous run's challenger.

    The previous run may have had a different test split.
    """
    last = data.lineage.since_last_run.metrics if data.lineage.since_last_run else {}
    ours = data.figures.challenger.metrics
    return [
        {"name": metric_title(name, top_k)[0], "value": ours[name], "before": before}
        for name, before in last.items()
        if name in ours
    ]
