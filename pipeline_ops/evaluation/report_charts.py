"""The charts of the report: training, precision and recall, calibration, and sentences on the
training. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from pipeline_ops.artifacts.dataset import DatasetFigures
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
    """Says whose weights the model has and why. Epochs count from 1."""
    history, used = training.history, training.best_epoch
    if not 0 <= used < len(history):
        return ""
    if training.best_monitor:
        reason = f"the best {training.best_monitor.replace('_', ' ')}"
    else:
        reason = "the last one, because train.best_checkpoint is null"
    return f"The model has the weights of epoch {used + 1} of {len(history)}: {reason}."


def describe_overfitting(training: TrainingFigures, dataset: DatasetFigures) -> str:
    """Says that the training data are too few, if the validation loss rose while the training loss
    went on falling. Returns "" otherwise.

    The losses after the last epoch are compared with those of the lowest validation loss.
    """
    history, used = training.history, training.best_epoch
    if not history or "validation_loss" not in history[0].metrics:
        return ""
    losses = [epoch.metrics["validation_loss"] for epoch in history]
    lowest, last = min(range(len(losses)), key=losses.__getitem__), len(losses) - 1
    limit = _OVERFITTED * losses[lowest]
    train_losses = [history[epoch].metrics["loss"] for epoch in (lowest, last)]
    if not (losses[last] > limit and train_losses[1] < train_losses[0]):
        return ""
    if used >= 0 and losses[used] <= limit:
        harm = f"This did no harm: the model has the weights of epoch {used + 1}, before the rise. "
    else:
        harm = "" if training.best_monitor else "Keep the best epoch (train.best_checkpoint). "
    return (
        f"The training data are too few for this model ({_describe_training_data(dataset)}): "
        f"from epoch {lowest + 1} to {last + 1}, the validation loss rose from "
        f"{losses[lowest]:.4g} to {losses[last]:.4g}, while the training loss fell from "
        f"{train_losses[0]:.4g} to {train_losses[1]:.4g}. {harm}More images help most, then more "
        "random changes (train.input.augment), a smaller model, or a warm start (train.warm_start)."
    )


def _describe_training_data(dataset: DatasetFigures) -> str:
    counts = {name: dataset.labels.get("train", {}).get(name, 0) for name in dataset.class_names}
    text = f"{dataset.num_examples['train']:,} images"
    if len(counts) < 2 or not any(counts.values()):
        return text
    rarest = min(counts, key=counts.__getitem__)
    unit = "boxes" if dataset.task == "detection" else "images"
    return f"{text}; class {rarest} has the fewest {unit}, {counts[rarest]:,}"


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
