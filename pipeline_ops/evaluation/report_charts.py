"""The charts of the report: training, precision and recall, calibration, and a sentence on the
training. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from pipeline_ops.artifacts.results import ModelEvaluation, TrainingFigures
from pipeline_ops.evaluation.scores import RECALL_THRESHOLDS
from pipeline_ops.pages.charts import Bar, Line, draw_line_chart, draw_share_chart

Chart = tuple[str, list[Line], Markup]
"""Title, curves and drawing."""
_MAX_CLASS_CURVES = 5
_MODELS = (("challenger", "validation"), ("champion", "champion"))
"""The models of an evaluation, and the styles of their curves."""

_OVERFITTED = 1.1
"""A validation loss is worse than the lowest one from this factor on. Less is noise."""


def draw_training_charts(training: TrainingFigures) -> list[Chart]:
    """Draws the loss, the other metrics, and the learning rate.

    The first epoch is number 1, for readers.
    """
    history = training.history
    used = training.best_epoch + 1 if training.best_epoch >= 0 else None
    charts: list[Chart] = []
    known = history[0].metrics if history else {}
    for metric in (
        name.removeprefix("validation_") for name in known if name.startswith("validation_")
    ):
        title = metric.replace("_", " ").capitalize()
        lines = [
            Line(name, name, [(epoch.epoch + 1, epoch.metrics[key]) for epoch in history])
            for name, key in (("training", metric), ("validation", f"validation_{metric}"))
            if key in known
        ]
        drawing = draw_line_chart(
            f"{title} by epoch",
            lines,
            y_min=0.0 if metric == "loss" else math.inf,
            y_max=1.0 if metric == "accuracy" else math.inf,
            marked_x=used,
            marked_label="best" if training.best_monitor else "used",
        )
        charts.append((title, lines, drawing))
    rates = [(epoch.epoch + 1, epoch.learning_rate) for epoch in history]
    lines = [Line("learning rate", "validation", rates)]
    return [
        *charts,
        ("Learning rate", lines, draw_line_chart("Learning rate by epoch", lines, y_min=0.0)),
    ]


def describe_used_epoch(training: TrainingFigures) -> str:
    """Says whose weights the model has and why, and whether it overfitted. Epochs count from 1."""
    history, used = training.history, training.best_epoch
    if not 0 <= used < len(history):
        return ""
    if training.best_monitor:
        reason = f"the best {training.best_monitor.replace('_', ' ')}"
    else:
        reason = "the last one, because train.best_checkpoint is null"
    text = f"The model has the weights of epoch {used + 1} of {len(history)}: {reason}."
    losses = [epoch.metrics.get("validation_loss", math.inf) for epoch in history]
    lowest = min(range(len(losses)), key=losses.__getitem__)
    if lowest < used and losses[used] > _OVERFITTED * losses[lowest] and losses[lowest] > 0:
        text += (
            f" It overfitted: the validation loss was lowest in epoch {lowest + 1} "
            f"({losses[lowest]:.4g}), and rose to {losses[used]:.4g}. "
            "Keep the best epoch (train.best_checkpoint), train for fewer epochs, "
            "or add examples or random changes (train.input.augment)."
        )
    return text


def draw_precision_recall_charts(
    means: Sequence[np.ndarray | None], classes: Sequence[tuple[str, float, np.ndarray]]
) -> list[Chart]:
    """Draws the mean of all classes, and the weakest classes.

    Args:
      means: precisions float [101] of the challenger and, if there is one, of the champion.
      classes: name, average precision and precisions of each class of the challenger.
    """
    lines = [
        Line(name, style, to_recall_points(mean))
        for (name, style), mean in zip(_MODELS, means, strict=False)
        if mean is not None
    ][::-1]
    weakest = sorted(classes, key=lambda each: each[1])[:_MAX_CLASS_CURVES]
    by_class = [
        Line(f"{name} ({value:.3f})", f"series-{number}", to_recall_points(precisions))
        for number, (name, value, precisions) in enumerate(weakest)
    ]
    return [
        (title, curves, draw_share_chart(f"Precision against recall {text}", "recall", curves))
        for title, curves, text in (
            ("Precision and recall", lines, "as the mean of all classes"),
            ("Weakest classes", by_class, "of the weakest classes"),
        )
    ]


def draw_calibration_chart(challenger: ModelEvaluation, champion: ModelEvaluation | None) -> Chart:
    lines = [Line("perfect", "training", [(0.0, 0.0), (1.0, 1.0)])]
    for (name, style), model in reversed(tuple(zip(_MODELS, (challenger, champion), strict=True))):
        if model:
            points = [(each.confidence, each.accuracy) for each in model.calibration]
            lines.append(Line(name, style, points))
    total = sum(each.count for each in challenger.calibration)
    bars = [
        Bar(
            each.low,
            each.high,
            each.count / total,
            f"{each.count} answers of probability {each.low:.2f} to {each.high:.2f}, "
            f"{each.accuracy:.1%} of them right",
        )
        for each in challenger.calibration
    ]
    title = "Share of right answers by probability of the answer"
    return "Calibration", lines, draw_share_chart(title, "probability of the answer", lines, bars)


def to_recall_points(precisions: np.ndarray) -> list[tuple[float, float]]:
    """Returns the points of a curve of precisions at RECALL_THRESHOLDS."""
    return list(zip(RECALL_THRESHOLDS.tolist(), precisions.tolist(), strict=True))
