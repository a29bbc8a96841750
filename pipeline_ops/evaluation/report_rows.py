"""The tables of the report, as rows that its template only has to lay out.

Pure functions of the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pipeline_ops.artifacts.results import (
    EvaluationFigures,
    ModelEvaluation,
    SliceFigures,
    compare_with_baseline,
)
from pipeline_ops.config.evaluate import LOWER_IS_BETTER
from pipeline_ops.pages.charts import draw_interval_chart

MAX_CLASS_ROWS = 100

_METRIC_NAMES = {
    "accuracy": ("Accuracy", "share of images that were classified correctly"),
    "top_k_accuracy": ("Top-{k} accuracy", "the label is among the {k} most probable"),
    "macro_precision": ("Precision", "mean over classes"),
    "macro_recall": ("Recall", "mean over classes"),
    "macro_f1": ("F1", "mean over classes"),
    "worst_class_recall": ("Recall of the worst class", "the lowest recall of a class"),
    "macro_roc_auc": ("ROC area", "one class against all others, mean"),
    "macro_average_precision": ("Precision-recall area", "average precision, mean over classes"),
    "calibration_error": (
        "Calibration error",
        "distance of the probabilities from the truth, lower is better",
    ),
}


def describe_metric(metric: str, top_k: int) -> tuple[str, str]:
    """Returns the name and the meaning of a metric."""
    name, meaning = _METRIC_NAMES.get(metric, (metric.replace("_", " "), ""))
    return name.format(k=top_k), meaning.format(k=top_k)


def describe_baseline(figures: EvaluationFigures) -> str:
    """Says whether the challenger is better than the baseline, and how that answers."""
    text = compare_with_baseline(figures.challenger.metrics, figures.baseline)
    if not text:
        return ""
    if "accuracy" not in figures.baseline:
        return f"{text} (boxes of average size in the centre)."
    most_frequent = max(figures.challenger.classes, key=lambda each: each.support)
    return f"{text} (it always answers {most_frequent.name})."


def build_metric_rows(figures: EvaluationFigures, top_k: int) -> list[dict[str, Any]]:
    """Returns a row for each metric. Higher-is-better metrics are drawn on one scale."""
    challenger = figures.challenger.metrics
    champion = figures.champion.metrics if figures.champion else {}
    low = _find_scale_start(
        value
        for model in (challenger, champion)
        for name, value in model.items()
        if name not in LOWER_IS_BETTER
    )
    rows = []
    for metric in (name for name in _METRIC_NAMES if name in challenger):
        name, meaning = describe_metric(metric, top_k)
        interval = figures.challenger.intervals.get(metric)
        row = _compare_values(challenger[metric], champion.get(metric), interval, low)
        rows.append(
            row
            | {
                "name": name,
                "meaning": meaning,
                "direction": get_metric_direction(metric),
                "baseline": figures.baseline.get(metric),
                "difference_interval": figures.differences.get(metric),
                "chart": "" if metric in LOWER_IS_BETTER else row["chart"],
            }
        )
    return rows


def get_metric_direction(metric: str) -> int:
    """Returns 1 if higher is better, -1 if lower is better."""
    return -1 if metric in LOWER_IS_BETTER else 1


def build_slice_tables(slices: Sequence[SliceFigures]) -> list[dict[str, Any]]:
    """Returns a table for each slice: accuracy by value, all on one scale."""
    low = _find_scale_start(
        value
        for part in slices
        for value in (part.challenger["accuracy"], part.intervals["accuracy"][0])
    )
    tables: dict[str, list[dict[str, Any]]] = {}
    for part in slices:
        champion = part.champion["accuracy"] if part.champion else None
        row = {
            "name": part.value,
            "num_examples": part.num_examples,
            "macro_f1": part.challenger["macro_f1"],
        } | _compare_values(part.challenger["accuracy"], champion, part.intervals["accuracy"], low)
        tables.setdefault(part.name, []).append(row)
    return [{"name": name, "rows": rows} for name, rows in tables.items()]


def _find_scale_start(values: Iterable[float]) -> float:
    return min(0.95, max(0.0, min(values, default=1.0) - 0.05))


def _compare_values(
    value: float, champion: float | None, interval: tuple[float, float] | None, low: float
) -> dict[str, Any]:
    return {
        "value": value,
        "champion": champion,
        "interval": interval,
        "difference": None if champion is None else value - champion,
        "chart": draw_interval_chart(value, champion, low, interval),
    }


def limit_class_rows(
    rows: list[dict[str, Any]], order: Callable[[dict[str, Any]], float]
) -> list[dict[str, Any]]:
    """Returns all rows, or the first `MAX_CLASS_ROWS` in this order if there are more."""
    return rows if len(rows) <= MAX_CLASS_ROWS else sorted(rows, key=order)[:MAX_CLASS_ROWS]


def build_confusion_cells(model: ModelEvaluation) -> list[list[dict[str, Any]]]:
    """Returns cells by row.

    `share` is the share of the row, so that classes of all sizes are drawn alike.
    """
    return [
        [
            {"count": count, "share": count / max(1, sum(row)), "is_correct": i == j}
            for j, count in enumerate(row)
        ]
        for i, row in enumerate(model.confusion)
    ]


def find_confused_pairs(model: ModelEvaluation, names: list[str]) -> list[dict[str, Any]]:
    """Returns confusions, the most frequent first."""
    pairs = [
        {"label": names[i], "answer": names[j], "count": count, "share": count / sum(row)}
        for i, row in enumerate(model.confusion)
        for j, count in enumerate(row)
        if i != j and count
    ]
    return sorted(pairs, key=lambda pair: -pair["count"])
