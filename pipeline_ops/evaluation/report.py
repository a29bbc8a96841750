"""The report of an evaluation: one HTML page that holds everything itself, for a person who decides.

`render` is a pure function: the same evaluation gives the same bytes, without a clock or a run id. The page runs no
script and loads nothing, and says so in its security policy; all text in it is escaped by the template engine. The
template and the style sheet lie beside this file.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pipeline_ops.contracts.figures import ClassFigures, Epoch, EvaluationFigures, ModelEvaluation, TrainingFigures
from pipeline_ops.contracts.page import render_page
from pipeline_ops.contracts.shards import SPLITS, DatasetFigures
from pipeline_ops.evaluation.answers import Mistake
from pipeline_ops.evaluation.lineage import Lineage
from pipeline_ops.evaluation.metrics import Comparison, wilson_interval_95
from pipeline_ops.evaluation.pictures import data_uri
from pipeline_ops.evaluation.svg import Line, interval_chart, line_chart

_MAX_REJECTED = 50
_MAX_MATRIX_CLASSES = 30
"""A larger confusion matrix can't be read any more; the most frequent confusions can."""
_MAX_CLASS_ROWS = 100
_MAX_PAIRS = 12

_METRIC_NAMES = {
    "accuracy": ("Accuracy", "share of images that were classified correctly"),
    "macro_precision": ("Precision", "mean over classes"),
    "macro_recall": ("Recall", "mean over classes"),
    "macro_f1": ("F1", "mean over classes"),
    "worst_class_recall": ("Recall of the worst class", "the class that is found least"),
}


@dataclasses.dataclass(frozen=True)
class ReportData:
    """All that the page shows. `why_alone` says why there is no comparison, as the end of a sentence."""

    pipeline: str
    figures: EvaluationFigures
    comparison: Comparison | None
    why_alone: str | None
    mistakes: list[Mistake]
    training: TrainingFigures
    dataset: DatasetFigures
    rejected: list[dict[str, str]]
    lineage: Lineage


def read_rejected(quarantine: Path) -> list[dict[str, str]]:
    """The first records of a data set's quarantine: {"key", "stage", "reason", "detail"}."""
    if not quarantine.exists():
        return []
    with open(quarantine, encoding="utf-8") as lines:
        return [{"detail": "", **json.loads(line)} for line in itertools.islice(lines, _MAX_REJECTED)]


def render(data: ReportData) -> str:
    """The page, as text to be written in UTF-8."""
    here = Path(__file__).parent
    figures = data.figures
    return render_page(
        here / "report.html", [here / "report.css"], data=data, figures=figures, splits=SPLITS, class_names=data.dataset.class_names,
        interval=_accuracy_interval(figures.challenger), metrics=list(_metric_rows(figures)), charts=_charts(data.training),
        classes=_class_rows(figures), num_hidden_classes=max(0, len(data.dataset.class_names) - _MAX_CLASS_ROWS),
        empty_classes=[row.name for row in figures.challenger.classes if not row.support],
        matrix=_matrix(figures.challenger) if len(data.dataset.class_names) <= _MAX_MATRIX_CLASSES else None,
        pairs=_confused_pairs(figures.challenger, data.dataset.class_names)[:_MAX_PAIRS],
        mistakes=[{"mistake": mistake, "image": data_uri(mistake.image)} for mistake in data.mistakes],
        num_mistakes=figures.num_examples - sum(_correct(figures.challenger)), is_small=max(data.dataset.image_shape[:2]) <= 96)


def _correct(model: ModelEvaluation) -> list[int]:
    return [row[index] for index, row in enumerate(model.confusion)]


def _accuracy_interval(model: ModelEvaluation) -> tuple[float, float]:
    return wilson_interval_95(sum(_correct(model)), sum(map(sum, model.confusion)))


def _metric_rows(figures: EvaluationFigures) -> Iterator[dict[str, Any]]:
    """A row for each metric, all drawn on one scale."""
    challenger, champion = figures.challenger.metrics, figures.champion.metrics if figures.champion else {}
    low = max(0.0, min([*challenger.values(), *champion.values()]) - 0.05)
    low = min(low, 0.95)
    for metric, (name, meaning) in _METRIC_NAMES.items():
        value, other = challenger[metric], champion.get(metric)
        interval = _accuracy_interval(figures.challenger) if metric == "accuracy" else None
        yield {"name": name, "meaning": meaning, "value": value, "champion": other, "difference": None if other is None else value - other,
               "chart": interval_chart(value, other, low, interval)}


def _charts(training: TrainingFigures) -> list[tuple[str, list[Line], Markup]]:
    """Title, curves and drawing of each chart: the loss, the other metrics, the learning rate. For people, the first epoch is number 1."""
    def curve(name: str, style: str, value: Callable[[Epoch], float]) -> Line:
        return Line(name, style, [(epoch.epoch + 1, value(epoch)) for epoch in training.history])

    def chart(metric: str) -> tuple[str, list[Line], Markup]:
        title = metric.replace("_", " ").capitalize()
        lines = [curve("training", "training", lambda epoch: epoch.metrics[metric]),
                 curve("validation", "validation", lambda epoch: epoch.metrics[f"validation_{metric}"])]
        bounds = {"at_least": 0.0} if metric == "loss" else {"at_most": 1.0} if metric == "accuracy" else {}
        return title, lines, line_chart(f"{title} by epoch", lines, **bounds, **best)

    best = {"marked": training.best_epoch + 1, "mark": "best"} if training.best_epoch >= 0 else {}
    metrics = [name for name in training.history[0].metrics if f"validation_{name}" in training.history[0].metrics] if training.history else []
    rate = [curve("learning rate", "validation", lambda epoch: epoch.learning_rate)]
    return [*map(chart, metrics), ("Learning rate", rate, line_chart("Learning rate by epoch", rate, at_least=0.0))]


def _class_rows(figures: EvaluationFigures) -> list[dict[str, Any]]:
    """A row for each class; of very many classes, those that are found least."""
    champion: list[ClassFigures | None] = list(figures.champion.classes) if figures.champion else [None] * len(figures.challenger.classes)
    rows = [{"challenger": ours, "champion": theirs} for ours, theirs in zip(figures.challenger.classes, champion, strict=True)]
    if len(rows) > _MAX_CLASS_ROWS:
        rows = sorted(rows, key=lambda row: row["challenger"].recall)[:_MAX_CLASS_ROWS]
    return rows


def _matrix(model: ModelEvaluation) -> list[list[dict[str, Any]]]:
    """Cells by row; `share` is of the row, so that classes of all sizes are drawn alike."""
    return [[{"count": count, "share": count / max(1, sum(row)), "is_correct": i == j} for j, count in enumerate(row)]
            for i, row in enumerate(model.confusion)]


def _confused_pairs(model: ModelEvaluation, names: list[str]) -> list[dict[str, Any]]:
    """Confusions, the most frequent first."""
    pairs = [{"label": names[i], "answer": names[j], "count": count, "share": count / sum(row)}
             for i, row in enumerate(model.confusion) for j, count in enumerate(row) if i != j and count]
    return sorted(pairs, key=lambda pair: -pair["count"])
