"""The report of an evaluation: one self-contained HTML page, for a person who decides.

This module has the parts that all tasks share. `classifier_page.py` and `detector_page.py` add
those of their task. All are pure functions: the same evaluation gives the same bytes, without a
clock or a run id. The page runs no script and loads nothing, and its security policy forbids both.
The template engine escapes all text.
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
from pipeline_ops.evaluation.report_charts import describe_used_epoch, draw_training_charts
from pipeline_ops.evaluation.report_rows import describe_baseline, describe_metric
from pipeline_ops.pages.page import render_page

MAX_MATRIX_CLASSES = 30
"""The largest confusion matrix that is shown, because a larger one is not readable."""
_MAX_REJECTED = 50
_MAX_RULES = 12
"""The number of rules that are shown at once. Rules that do not hold are always shown."""


@dataclasses.dataclass(frozen=True)
class ReportData:
    """The contents of the pages of all tasks: the verdict, and the origin of the challenger.

    `no_champion_reason` explains why there is no comparison, as the end of a sentence.
    """

    pipeline: str
    figures: EvaluationFigures
    training: TrainingFigures
    dataset: DatasetFigures
    rejected: list[dict[str, str]]
    drift: list[dict[str, Any]] | None
    leaks: Leaks
    lineage: Lineage
    no_champion_reason: str | None


def read_rejected(quarantine: Path) -> list[dict[str, str]]:
    """Reads the first records of a data set's quarantine: {"key", "stage", "reason", "detail"}."""
    if not quarantine.exists():
        return []
    with open(quarantine, encoding="utf-8") as lines:
        return [
            {"detail": "", **json.loads(line)} for line in itertools.islice(lines, _MAX_REJECTED)
        ]


def render_report(
    template: str,
    data: ReportData,
    sections: Sequence[tuple[str, str]],
    top_k: int = 0,
    **values: Any,
) -> str:
    """Returns a page as text to be written in UTF-8.

    Args:
      template: extends `report.html`.
      sections: ids and titles of the template's own sections, for the table of contents.
      top_k: the k of `top_k_accuracy`.
      values: the variables of the template.
    """
    here, is_passed = Path(__file__).parent, data.figures.gate_passed
    shown_rules, more_rules = _split_rules(data.figures.rules)
    return render_page(
        here / template,
        [here / "report.css"],
        title=f"{data.pipeline}: gate {'passed' if is_passed else 'not passed'}",
        publication=Markup(PUBLICATION),  # noqa: S704 (a constant)
        data=data,
        figures=data.figures,
        contents=[
            ("gate", "Gate"),
            ("models", "Models"),
            ("changes", "What changed"),
            ("training", "Training"),
            *sections,
            ("data", "Data"),
            ("lineage", "Lineage"),
        ],
        rules=shown_rules,
        more_rules=more_rules,
        splits=SPLITS,
        class_names=data.dataset.class_names,
        training_charts=draw_training_charts(data.training),
        baseline=describe_baseline(data.figures),
        used_epoch=describe_used_epoch(data.training),
        last_metrics=_compare_with_last_metrics(data, top_k),
        **values,
    )


def _split_rules(rules: Sequence[RuleVerdict]) -> tuple[list[RuleVerdict], list[RuleVerdict]]:
    """Returns the rules that are shown at once, and the rules that are folded away.

    If there are more than `_MAX_RULES`, rules that hold are folded away.
    """
    if len(rules) <= _MAX_RULES:
        return list(rules), []
    failed = [rule for rule in rules if not rule.passed]
    held = [rule for rule in rules if rule.passed]
    num_free = max(0, _MAX_RULES - len(failed))
    return [*failed, *held[:num_free]], held[num_free:]


def _compare_with_last_metrics(data: ReportData, top_k: int) -> list[dict[str, Any]]:
    """Returns the metrics of the challenger next to those of the previous run's challenger.

    The previous run may have had a different test split.
    """
    last_metrics = data.lineage.since_last_run.metrics if data.lineage.since_last_run else {}
    metrics = data.figures.challenger.metrics
    return [
        {"name": describe_metric(name, top_k)[0], "value": metrics[name], "before": before}
        for name, before in last_metrics.items()
        if name in metrics
    ]
