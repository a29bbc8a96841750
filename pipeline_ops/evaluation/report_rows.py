"""The tables and charts of the report, as rows that its template only has to lay out.

Pure functions of the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from markupsafe import Markup

from pipeline_ops.artifacts.results import (
    CalibrationBin,
    ClassFigures,
    Epoch,
    EvaluationFigures,
    ModelEvaluation,
    TrainingFigures,
)
from pipeline_ops.config.evaluate import LOWER_IS_BETTER
from pipeline_ops.evaluation.metrics import Curves
from pipeline_ops.evaluation.scores import RECALLS
from pipeline_ops.evaluation.svg import Line, interval_chart, line_chart, share_chart

MAX_CLASS_ROWS = 100
_MAX_CLASS_CURVES = 5

_METRIC_NAMES = {
    "accuracy": ("Accuracy", "share of images that were classified correctly"),
    "top_k_accuracy": ("Top-{k} accuracy", "the label is among the {k} most probable"),
    "macro_precision": ("Precision", "mean over classes"),
    "macro_recall": ("Recall", "mean over classes"),
    "macro_f1": ("F1", "mean over classes"),
    "worst_class_recall": ("Recall of the worst class", "the class that is found least"),
    "macro_roc_auc": ("ROC area", "one class against all others, mean"),
    "macro_average_precision": ("Precision-recall area", "average precision, mean over classes"),
    "calibration_error": (
        "Calibration error",
        "how far probabilities are from the truth; less is better",
    ),
}


def metric_title(metric: str, top_k: int) -> tuple[str, str]:
    """Returns the name and the meaning of a metric."""
    name, meaning = _METRIC_NAMES.get(metric, (metric.replace("_", " "), ""))
    return name.format(k=top_k), meaning.format(k=top_k)


def metric_rows(figures: EvaluationFigures, top_k: int) -> Iterator[dict[str, Any]]:
    """Yields a row for each metric. Higher-is-better metrics are drawn on one scale."""
    challenger, champion = (
        figures.challenger.metrics,
        figures.champion.metrics if figures.champion else {},
    )
    drawn = [
        value
        for model in (challenger, champion)
        for name, value in model.items()
        if name not in LOWER_IS_BETTER
    ]
    low = min(0.95, max(0.0, min(drawn) - 0.05))
    for metric in (name for name in _METRIC_NAMES if name in challenger):
        value, other, interval = (
            challenger[metric],
            champion.get(metric),
            figures.challenger.intervals.get(metric),
        )
        name, meaning = metric_title(metric, top_k)
        yield {
            "name": name,
            "meaning": meaning,
            "value": value,
            "champion": other,
            "interval": interval,
            "sense": sense_of(metric),
            "difference": None if other is None else value - other,
            "difference_interval": figures.differences.get(metric),
            "chart": ""
            if metric in LOWER_IS_BETTER
            else interval_chart(value, other, low, interval),
        }


def sense_of(metric: str) -> int:
    """Returns 1 if more is better, -1 if less is better."""
    return -1 if metric in LOWER_IS_BETTER else 1


def slice_tables(figures: EvaluationFigures) -> list[dict[str, Any]]:
    """Returns a table for each slice: accuracy by value, all on one scale."""
    names = list(dict.fromkeys(part.name for part in figures.slices))
    values = [
        value
        for part in figures.slices
        for value in (part.challenger["accuracy"], part.intervals["accuracy"][0])
    ]
    low = min(0.95, max(0.0, min(values, default=1.0) - 0.05))
    return [
        {
            "name": name,
            "rows": [_slice_row(part, low) for part in figures.slices if part.name == name],
        }
        for name in names
    ]


def _slice_row(part: Any, low: float) -> dict[str, Any]:
    value, other = part.challenger["accuracy"], part.champion["accuracy"] if part.champion else None
    return {
        "value": part.value,
        "num_examples": part.num_examples,
        "accuracy": value,
        "champion": other,
        "interval": part.intervals["accuracy"],
        "difference": None if other is None else value - other,
        "macro_f1": part.challenger["macro_f1"],
        "chart": interval_chart(value, other, low, part.intervals["accuracy"]),
    }


def training_charts(training: TrainingFigures) -> list[tuple[str, list[Line], Markup]]:
    """Returns title, curves and drawing of each chart: loss, other metrics, learning rate.

    The first epoch is number 1, for readers.
    """

    def curve(name: str, style: str, value: Callable[[Epoch], float]) -> Line:
        return Line(name, style, [(epoch.epoch + 1, value(epoch)) for epoch in training.history])

    def chart(metric: str) -> tuple[str, list[Line], Markup]:
        title = metric.replace("_", " ").capitalize()
        lines = [
            curve("training", "training", lambda epoch: epoch.metrics[metric]),
            curve("validation", "validation", lambda epoch: epoch.metrics[f"validation_{metric}"]),
        ]
        bounds = (
            {"at_least": 0.0}
            if metric == "loss"
            else {"at_most": 1.0}
            if metric == "accuracy"
            else {}
        )
        return title, lines, line_chart(f"{title} by epoch", lines, **bounds, **best)

    best = {"marked": training.best_epoch + 1, "mark": "best"} if training.best_epoch >= 0 else {}
    metrics = (
        [
            name
            for name in training.history[0].metrics
            if f"validation_{name}" in training.history[0].metrics
        ]
        if training.history
        else []
    )
    rate = [curve("learning rate", "validation", lambda epoch: epoch.learning_rate)]
    return [
        *map(chart, metrics),
        ("Learning rate", rate, line_chart("Learning rate by epoch", rate, at_least=0.0)),
    ]


def score_charts(
    figures: EvaluationFigures, curves: Sequence[Curves], class_names: Sequence[str]
) -> list[tuple[str, list[Line], Markup]]:
    """Returns precision-recall charts and a calibration chart.

    The precision-recall charts show the mean of all classes and the weakest classes.
    """
    models = [("challenger", "validation"), ("champion", "champion")]
    means = [
        Line(name, style, recall_points(model.mean))
        for (name, style), model in reversed(list(zip(models, curves, strict=False)))
    ]
    weakest = sorted(
        (c for c in figures.challenger.classes if c.average_precision is not None),
        key=lambda c: c.average_precision,
    )
    index = {name: number for number, name in enumerate(class_names)}
    by_class = [
        Line(
            f"{c.name} ({c.average_precision:.3f})",
            f"series-{number}",
            recall_points(curves[0].by_class[index[c.name]]),
        )
        for number, c in enumerate(weakest[:_MAX_CLASS_CURVES])
    ]
    calibrated = [Line("perfect", "training", [(0.0, 0.0), (1.0, 1.0)])]
    if figures.champion:
        calibrated.append(
            Line(
                "champion",
                "champion",
                [(each.confidence, each.accuracy) for each in figures.champion.calibration],
            )
        )
    calibrated.append(
        Line(
            "challenger",
            "validation",
            [(each.confidence, each.accuracy) for each in figures.challenger.calibration],
        )
    )
    return [
        (
            "Precision and recall",
            means,
            share_chart("Precision against recall, mean of all classes", "recall", means),
        ),
        (
            "Weakest classes",
            by_class,
            share_chart("Precision against recall of the weakest classes", "recall", by_class),
        ),
        (
            "Calibration",
            calibrated,
            share_chart(
                "Share of right answers by probability of the answer",
                "probability of the answer",
                calibrated,
                _shares_of_bins(figures.challenger.calibration),
            ),
        ),
    ]


def recall_points(precisions: Any) -> list[tuple[float, float]]:
    """Returns the points of a curve of precisions at RECALLS."""
    return list(zip(RECALLS.tolist(), precisions.tolist(), strict=True))


def _shares_of_bins(bins: Sequence[CalibrationBin]) -> list[tuple[float, float, float, str]]:
    total = sum(each.count for each in bins)
    return [
        (
            each.low,
            each.high,
            each.count / total,
            f"{each.count} answers of probability {each.low:.2f} to {each.high:.2f}, "
            f"{each.accuracy:.1%} of them right",
        )
        for each in bins
    ]


def class_rows(figures: EvaluationFigures) -> list[dict[str, Any]]:
    """Returns a row for each class.

    Of more than `MAX_CLASS_ROWS` classes, only those with the lowest recall are returned.
    """
    champion: list[ClassFigures | None] = (
        list(figures.champion.classes)
        if figures.champion
        else [None] * len(figures.challenger.classes)
    )
    rows = [
        {"challenger": ours, "champion": theirs}
        for ours, theirs in zip(figures.challenger.classes, champion, strict=True)
    ]
    if len(rows) > MAX_CLASS_ROWS:
        rows = sorted(rows, key=lambda row: row["challenger"].recall)[:MAX_CLASS_ROWS]
    return rows


def matrix(model: ModelEvaluation) -> list[list[dict[str, Any]]]:
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


def confused_pairs(model: ModelEvaluation, names: list[str]) -> list[dict[str, Any]]:
    """Returns confusions, the most frequent first."""
    pairs = [
        {"label": names[i], "answer": names[j], "count": count, "share": count / sum(row)}
        for i, row in enumerate(model.confusion)
        for j, count in enumerate(row)
        if i != j and count
    ]
    return sorted(pairs, key=lambda pair: -pair["count"])
