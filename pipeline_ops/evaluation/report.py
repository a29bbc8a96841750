"""The report of an evaluation: one self-contained HTML page, for a person who decides.

Pure functions: the same evaluation gives the same bytes, without a clock or a run id. The page runs
no script and loads nothing, and its security policy forbids both. The template engine escapes all
text. `classifier.html` and `detector.html` extend `report.html`.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import functools
import heapq
import io
import itertools
import json
import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image

from pipeline_ops.config.evaluate import find_mode, rank_figure
from pipeline_ops.contract.dataset import SPLITS, DatasetFigures
from pipeline_ops.contract.features import FEATURES, LABELS
from pipeline_ops.contract.results import (
    PUBLICATION,
    EvaluationFigures,
    ModelEvaluation,
    TrainingFigures,
    compare_with_baseline,
    format_figure,
    has_clear_skill,
)
from pipeline_ops.contract.thresholds import ThresholdCounts, trace_curves
from pipeline_ops.evaluation.classifier import (
    NUM_PREDICTIONS,
    NUM_SHOWN,
    ClassifierFindings,
    rank_key,
)
from pipeline_ops.evaluation.detector import DetectorFindings, match_boxes
from pipeline_ops.evaluation.inputs import Leaks, Lineage
from pipeline_ops.evaluation.metrics import (
    NUM_SAMPLES,
    Curves,
    get_direction,
    to_recall_points,
)
from pipeline_ops.evaluation.skew import ServingComparison
from pipeline_ops.pages import charts, drawing
from pipeline_ops.pages.charts import Bar, Line
from pipeline_ops.pages.metric_titles import TITLES, describe_metric, format_metric_title
from pipeline_ops.pages.page import render_page
from pipeline_ops.served.client import ImageDetections, TrueBoxes

_MAX_CLASS_ROWS = 100
_MAX_MATRIX_CLASSES = 30
"""A confusion matrix of more classes is not shown, because it is not readable."""
_MAX_PAIRS = 12
_MAX_CLASS_CURVES = 5
_PERFECT = 0.9995
"""A class whose area is shown as 1.000 is not among the weakest."""
_MIN_BIN_ANSWERS = 5
"""A bin of fewer answers is no point of the calibration curve, because chance alone moves it."""
_MAX_REJECTED = 50
_MAX_RULES, _MAX_ALL_RULES = 12, 1000
"""The numbers of rules that are visible at first, and in all. Rules that do not hold come first and
are always visible."""
_MAX_TEXTS = 50
"""The number of warnings, of reasons, and of lines of changes."""
_NUM_LAST_METRICS = 3
_MAX_SHIFTED_CLASSES = 10
"""The number of classes whose shares in training and in requests are shown, the most different."""
_MAX_IMAGE_BYTES = 24 << 10
"""A larger file is shown as a smaller picture, so that all pictures of a page have 1.6 MB."""
_MAX_IMAGE_PIXELS = 256
_JPEG_QUALITIES = (85, 60, 20)
_MAX_BOXES = 200
"""The number of boxes that are drawn over a picture. Mistakes come first."""
_IMAGE_TYPES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}
_DEPARTED, _STANDARD_ERRORS = 0.1, 5.0
_OVERFITTED = 1.1
"""A validation loss counts as risen above this multiple of the lowest one. Less is noise."""
_MODELS = (("challenger", "validation"), ("champion", "champion"))
"""The models of an evaluation, and the styles of their curves."""
Chart = tuple[str, list[Line], Markup]
"""Title, curves and drawing."""


@dataclasses.dataclass(frozen=True)
class ReportData:
    """The contents that all reports share: the verdict, and the lineage of the challenger.

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
    no_champion_reason: str
    counts: ThresholdCounts
    seen: bytes = b""
    """The PNG of the first pictures as the model saw them. Older trainings have none."""
    serving: ServingComparison | None = None


def read_rejected(quarantine: Path) -> list[dict[str, str]]:
    """Reads the first records of a data set's quarantine: {"key", "stage", "reason", "detail"}."""
    if not quarantine.exists():
        return []
    with open(quarantine, encoding="utf-8") as lines:
        return [
            {"detail": "", **json.loads(line)} for line in itertools.islice(lines, _MAX_REJECTED)
        ]


def render_report(found: ClassifierFindings | DetectorFindings, data: ReportData) -> str:
    """Returns the page as text to be written in UTF-8."""
    here, figures, names = Path(__file__).parent, data.figures, data.dataset.class_names
    classes = figures.challenger.classes
    shown_classes = list(range(len(names)))
    if len(names) > _MAX_CLASS_ROWS:
        shown_classes.sort(key=lambda index: classes[index].recall)
        del shown_classes[_MAX_CLASS_ROWS:]
    average_precisions: Mapping[str, float | None]
    rules = figures.rules
    if len(rules) > _MAX_RULES:  # rules that do not hold come first, and are not folded
        rules = sorted(rules, key=lambda rule: rule.passed)
    num_rules = max(_MAX_RULES, sum(not rule.passed for rule in rules))
    num_hidden_rules = max(0, len(rules) - _MAX_ALL_RULES)
    rules = rules[:_MAX_ALL_RULES]
    counts = sum(map(Counter, data.dataset.labels.values()), Counter[str]())
    if isinstance(found, ClassifierFindings):
        template, top_k = "classifier.html", found.top_k
        average_precisions = {each.name: each.average_precision for each in classes}
        values = _describe_classifier(figures, names, top_k)
    else:
        template, top_k = "detector.html", 0
        average_precisions = found.evaluations[0].average_precisions_50
        pictures = mark_mistakes(found.scenes, found.detections, found.min_score, names)
        images = found.read_images({picture["key"] for picture in pictures})
        pictures = [picture | {"image": images[picture["key"]]} for picture in pictures]
        values = {"pictures": pictures}
    last_metrics = [
        (describe_metric(name, top_k)[0], before, figures.challenger.metrics[name])
        for name, before in data.lineage.last_metrics.items()
        if name in figures.challenger.metrics
    ]
    return render_page(
        here / template,
        [here / "report.css"],
        title=f"{data.pipeline}: gate {'passed' if figures.gate_passed else 'not passed'}",
        publication=Markup(PUBLICATION),  # noqa: S704 (a constant)
        data=data,
        figures=figures,
        metric_title=format_metric_title,
        found=found,
        rules=rules[:num_rules],
        more_rules=rules[num_rules:],
        num_hidden_rules=num_hidden_rules,
        splits=SPLITS,
        class_names=names,
        shown_classes=shown_classes,
        largest_classes=sorted(names, key=lambda name: -counts[name])[:_MAX_CLASS_ROWS]
        if len(names) > _MAX_CLASS_ROWS
        else names,
        max_texts=_MAX_TEXTS,
        confusion=figures.challenger.confusion if len(names) <= _MAX_MATRIX_CLASSES else None,
        training_charts=_draw_training_charts(data.training),
        score_charts=[
            *_draw_precision_recall_charts(found.curves, average_precisions),
            _draw_threshold_chart(data.counts),
        ],
        baseline=""
        if has_clear_skill(figures.challenger.metrics, figures.baseline)
        else compare_with_baseline(figures.challenger.metrics, figures.baseline),
        last_metrics=last_metrics[:_NUM_LAST_METRICS],
        production=_describe_production(data.serving) if data.serving else None,
        to_data_uri=to_data_uri,
        seen=f"data:image/png;base64,{base64.b64encode(data.seen).decode()}" if data.seen else "",
        num_samples=NUM_SAMPLES,
        **values,
    )


def _describe_production(comparison: ServingComparison) -> dict[str, Any]:
    """Returns the texts, charts and classes of the section about requests."""
    requests, training = comparison.requests, comparison.training
    charts_by_title = []
    for distance in comparison.figures.distances:
        if distance.feature != LABELS and distance.l_infinity:  # others show nothing
            name, feature = distance.feature, FEATURES[distance.feature]
            ours, theirs = training.features[name], requests.features[name]
            chart = charts.draw_binned_histogram(
                feature.title, feature.unit, feature.edges, ours.counts, theirs.counts
            )
            means = [charts.format_number(each.mean(name)) for each in (ours, theirs)]
            charts_by_title.append((feature, means, chart))
    trained, asked = (max(1, sum(each.labels.values())) for each in (training, requests))
    names = training.labels.keys() | requests.labels.keys()
    classes = [
        (name, training.labels.get(name, 0) / trained, requests.labels.get(name, 0) / asked)
        for name in sorted(names)
    ]
    return {
        "period": [_format_minute(each) for each in (requests.start, requests.end)],
        "charts": charts_by_title,
        "classes": sorted(classes, key=lambda row: -abs(row[1] - row[2]))[:_MAX_SHIFTED_CLASSES],
        "titles": {name: feature.title for name, feature in FEATURES.items()} | {LABELS: "Classes"},
    }


def _format_minute(seconds: int) -> str:
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%d %H:%M}"


def _describe_classifier(
    figures: EvaluationFigures, names: list[str], top_k: int
) -> dict[str, Any]:
    """Returns the variables that only `classifier.html` has."""
    pairs = [
        {"label": names[i], "answer": names[j], "count": count, "share": count / sum(row)}
        for i, row in enumerate(figures.challenger.confusion)
        for j, count in enumerate(row)
        if i != j and count
    ]
    models = [figures.challenger, *([figures.champion] if figures.champion else [])]
    return {
        "metric_texts": {
            name: describe_metric(name, top_k)
            for name in dict.fromkeys((*TITLES, *figures.challenger.metrics))
        },
        "get_direction": functools.partial(get_direction, own=figures.own_modes),
        # The others have no common scale.
        "metrics_on_scale": [name for name in TITLES if find_mode(name) == "max"],
        "draw_interval_chart": charts.draw_interval_chart,
        # Metrics share one scale, and so do slices.
        "scale_start": _find_scale_start(
            value
            for model in models
            for name, value in model.metrics.items()
            if name in TITLES and find_mode(name) == "max"
        ),
        "slice_scale_start": _find_scale_start(
            value
            for part in figures.slices
            for value in (part.challenger["accuracy"], part.intervals["accuracy"][0])
        ),
        "calibration_chart": _draw_calibration_chart(models),
        "pairs": sorted(pairs, key=operator.itemgetter("count"), reverse=True)[:_MAX_PAIRS],
        "num_mistakes": sum(pair["count"] for pair in pairs),
    }


def _find_scale_start(values: Iterable[float]) -> float:
    return min(0.95, max(0.0, min(values, default=1.0) - 0.05))


def _draw_training_charts(training: TrainingFigures) -> list[Chart]:
    """Draws the loss, the other metrics, and the learning rate.

    The first epoch is number 1, for readers.
    """
    history = training.history
    known = history[0].metrics if history else {}
    drawn: list[Chart] = []
    for key in (name for name in known if name.startswith("validation_")):
        metric = key.removeprefix("validation_")
        title = format_metric_title(metric)
        lines = [
            Line(name, name, [(epoch.epoch + 1, epoch.metrics[each]) for epoch in history])
            for name, each in (("training", metric), ("validation", key))
            if each in known
        ]
        chart = charts.draw_line_chart(
            f"{title} by epoch",
            lines,
            y_min=0.0 if metric == "loss" else math.inf,
            y_max=1.0 if metric == "accuracy" else math.inf,
            marked_x=training.best_epoch + 1 if training.best_epoch >= 0 else None,
            marked_label="best" if training.best_monitor else "used",
        )
        drawn.append((title, lines, chart))
    rates = [(epoch.epoch + 1, epoch.learning_rate) for epoch in history]
    lines = [Line("learning rate", "validation", rates)]
    chart = charts.draw_line_chart("Learning rate by epoch", lines, y_min=0.0)
    return [*drawn, ("Learning rate", lines, chart)]


def describe_overfitting(training: TrainingFigures, dataset: DatasetFigures) -> str:
    """Warns of too few training data if the validation loss rose while the training loss fell.

    Returns "" otherwise. The last epoch is compared with the epoch of the lowest validation loss.
    """
    history, used = training.history, training.best_epoch
    if not history or "validation_loss" not in history[0].metrics:
        return ""
    losses = [epoch.metrics["validation_loss"] for epoch in history]
    ranks = [rank_figure(loss, "min") for loss in losses]
    lowest, last = max(range(len(losses)), key=ranks.__getitem__), len(losses) - 1
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


def compare_with_training(
    training: TrainingFigures, dataset: DatasetFigures, tested: Mapping[str, float]
) -> list[str]:
    """Warns if a model is worse on the test split than it was on the validation split.

    Either the splits differ, or the evaluated model is not the trained one. A difference counts if
    it is larger than 0.1 plus five standard errors of two proportions.

    Args:
      training: the training of the model.
      dataset: the data set of the training.
      tested: the model's metrics on the test split.
    """
    if not 0 <= training.best_epoch < len(training.history):
        return []
    validated, sizes = training.history[training.best_epoch].metrics, dataset.num_examples
    if not sizes.get("validation") or not sizes.get("test"):
        return []
    for name in ("accuracy", "map_50"):
        before, now = validated.get(f"validation_{name}", math.nan), tested.get(name, math.nan)
        mean = (before + now) / 2
        error = math.sqrt(
            max(0.0, mean * (1 - mean)) * (1 / sizes["validation"] + 1 / sizes["test"])
        )
        if before - now > _DEPARTED + _STANDARD_ERRORS * error:
            return [
                f"{name} is {format_figure(now)} on the test split, and was "
                f"{format_figure(before)} on the validation split after epoch "
                f"{training.best_epoch + 1} of its training: either the splits are of other "
                "images, or the published model is not the trained one"
            ]
    return []


def _describe_training_data(dataset: DatasetFigures) -> str:
    counts = {name: dataset.labels.get("train", {}).get(name, 0) for name in dataset.class_names}
    text = f"{dataset.num_examples['train']:,} images"
    if len(counts) < 2 or not any(counts.values()):
        return text
    rarest = min(counts, key=counts.__getitem__)
    unit = "boxes" if dataset.task == "detection" else "images"
    return f"{text}; class {rarest} has the fewest {unit}, {counts[rarest]:,}"


def _draw_precision_recall_charts(
    curves: Sequence[Curves], average_precisions: Mapping[str, float | None]
) -> list[Chart]:
    """Draws the mean of all classes, and the weakest classes of the challenger.

    `curves` are those of the challenger and, if there is one, of the champion.
    """
    means = [
        Line(name, style, to_recall_points(model))
        for (name, style), model in zip(_MODELS, curves, strict=False)
        if model
    ][::-1]
    # Rounded, so that classes of equal figures keep their order.
    known = {name: round(average_precisions[name] or 0.0, 9) for name in curves[0]}
    imperfect = [name for name, area in known.items() if area < _PERFECT]
    weakest = sorted(imperfect, key=known.__getitem__)[:_MAX_CLASS_CURVES]
    by_class = [
        Line(
            f"{name} ({known[name]:.3f})",
            f"series-{number}",
            to_recall_points({name: curves[0][name]}),
        )
        for number, name in enumerate(weakest)
    ]
    return [
        (
            title,
            lines,
            charts.draw_share_chart(
                f"Precision against recall {text}", "recall", lines, y_label="precision"
            ),
        )
        for title, lines, text in (
            ("Precision and recall", means, "as the mean of all classes"),
            ("Weakest classes", by_class, "of the weakest classes"),
        )
        if lines
    ]


def _draw_threshold_chart(counts: ThresholdCounts) -> Chart:
    title, x_label, y_label, lines = trace_curves(counts)
    return title, lines, charts.draw_share_chart(title, x_label, lines, y_label=y_label)


def _draw_calibration_chart(models: Sequence[ModelEvaluation]) -> Chart:
    lines = [
        Line(
            name,
            style,
            [
                (each.confidence, each.accuracy)
                for each in model.calibration
                if each.count >= _MIN_BIN_ANSWERS
            ],
        )
        for (name, style), model in zip(_MODELS, models, strict=False)
    ]
    lines = [Line("perfect", "training", [(0.0, 0.0), (1.0, 1.0)]), *lines[::-1]]
    bins = models[0].calibration
    total = sum(each.count for each in bins)
    bars = [
        Bar(
            each.low,
            each.high,
            each.count / total,
            f"{each.count} answers of probability {each.low:.2f} to {each.high:.2f}, "
            f"{each.accuracy:.1%} of them right",
        )
        for each in bins
    ]
    title = "Share of right answers by probability of the answer"
    x_label = "probability of the answer"
    chart = charts.draw_share_chart(title, x_label, lines, bars, y_label="share of right answers")
    return "Calibration", lines, chart


def draw_predictions(found: ClassifierFindings | DetectorFindings, names: Sequence[str]) -> bytes:
    """Draws some test images as a PNG file: the truth on the left, the prediction on the right."""
    draw, cells = functools.partial(drawing.draw_cell, side=drawing.LARGE_CELL_PIXELS), []
    if isinstance(found, ClassifierFindings):
        for shown in found.predictions.samples:
            image, entry = drawing.decode_image(shown.image), shown.entry
            color = "#080" if entry["prediction"] == entry["label"] else "#b00"
            answer = f"prediction: {entry['prediction']} {entry['confidence']:.2f}"
            cells.append(draw(image, (), entry["key"], f"truth: {entry['label']}"))
            cells.append(draw(image, (), "", answer, color))
        return drawing.draw_grid(cells, columns=2)
    pairs = zip(found.scenes, found.detections, strict=True)
    sample = sorted(pairs, key=lambda pair: -rank_key(pair[0].key))[:NUM_PREDICTIONS]
    images = found.read_images({scene.key for scene, _ in sample})
    for scene, detections in sample:
        image = drawing.decode_image(images[scene.key])
        detected = detections.filter_by_score(found.min_score)
        truth = _label_boxes(scene, names)
        prediction = _label_boxes(detected, names, detected.scores)
        num_true, num_found = (drawing.count_boxes(len(each)) for each in (truth, prediction))
        answer = f"prediction: {num_found} with a score of {found.min_score:g} or more"
        cells.append(draw(image, truth, scene.key, f"truth: {num_true}"))
        cells.append(draw(image, prediction, "", answer))
    return drawing.draw_grid(cells, columns=2)


def _label_boxes(
    found: TrueBoxes | ImageDetections, names: Sequence[str], scores: Iterable[float | None] = ()
) -> list[drawing.LabelledBox]:
    triples = itertools.zip_longest(np.clip(found.boxes, 0, 1), found.classes, scores)
    return [drawing.LabelledBox(box, names[label], score) for box, label, score in triples]


def mark_mistakes(
    scenes: Sequence[TrueBoxes],
    detections: Sequence[ImageDetections],
    min_score: float,
    names: Sequence[str],
) -> list[dict[str, Any]]:
    """Returns test images with the boxes of truth and answer.

    The images with the most mistakes come first. Keys settle ties.
    """
    pictures = (
        _mark_scene(scene, detected.filter_by_score(min_score), names)
        for scene, detected in zip(scenes, detections, strict=True)
    )
    return heapq.nsmallest(  # holds the boxes of these pictures only
        NUM_SHOWN, pictures, key=lambda picture: (-picture["num_mistakes"], picture["key"])
    )


def _mark_scene(
    scene: TrueBoxes, detected: ImageDetections, names: Sequence[str]
) -> dict[str, Any]:
    truth_indexes, is_ignored = match_boxes(scene, detected)
    boxes, counts = [], Counter[str]()
    for i, box in enumerate(scene.boxes):
        is_missed = i not in truth_indexes and not scene.is_crowd[i]
        counts["missed"] += is_missed
        name = names[scene.classes[i]] + (" missed" if is_missed else "")
        boxes.append((not is_missed, _to_box_style(box, name, "truth-box")))
    for i, truth in enumerate(truth_indexes):
        if truth >= 0:
            kind = "" if scene.classes[truth] == detected.classes[i] else "confused"
        else:
            kind = "" if is_ignored[i] else "false alarm"
        counts[kind] += 1
        name = f"{names[detected.classes[i]]} {detected.scores[i]:.2f}"
        style = "answer-box" if kind else "right-box"
        boxes.append((not kind, _to_box_style(detected.boxes[i], name, style)))
    texts = [
        f"{counts[kind]} {kind}{'s' if kind == 'false alarm' and counts[kind] > 1 else ''}"
        for kind in ("missed", "false alarm", "confused")
        if counts[kind]
    ]
    num_hidden = max(0, len(boxes) - _MAX_BOXES)
    if num_hidden:
        boxes.sort(key=operator.itemgetter(0))
        texts.append(f"{num_hidden} of {len(boxes)} boxes are not drawn")
    return {
        "key": scene.key,
        "boxes": [box for _, box in boxes[:_MAX_BOXES]],
        "num_mistakes": counts.total() - counts[""],
        "text": ", ".join(texts) or "all right",
    }


def _to_box_style(box: np.ndarray, text: str, style: str) -> dict[str, Any]:
    """Converts a box to percent, as the style of the page's boxes needs it."""
    top, left, bottom, right = (100 * float(edge) for edge in box)
    size = {"left": left, "top": top, "width": right - left, "height": bottom - top}
    return {"style": style, "text": text, **size}


def to_data_uri(image: bytes) -> str | None:
    """Returns `data:image/png;base64,...` of an image file in any format that Pillow knows.

    PNG and JPEG stay as they are, other formats become a PNG. Large files become a PNG or a JPEG of
    at most 256 x 256 pixels. Returns None for a file that is not an image.
    """
    kind = next((kind for magic, kind in _IMAGE_TYPES.items() if image.startswith(magic)), None)
    if kind is None or len(image) > _MAX_IMAGE_BYTES:
        picture = drawing.decode_image(image)
        if picture is None:
            return None
        picture.thumbnail((_MAX_IMAGE_PIXELS, _MAX_IMAGE_PIXELS))
        kind, image = "image/png", _save(picture, "PNG")
        for quality in _JPEG_QUALITIES:
            if len(image) > _MAX_IMAGE_BYTES:
                kind, image = "image/jpeg", _save(picture, "JPEG", quality=quality)
    return f"data:{kind};base64,{base64.b64encode(image).decode()}"


def _save(picture: Image.Image, kind: str, **options: int) -> bytes:
    output = io.BytesIO()
    picture.save(output, kind, **options)
    return output.getvalue()
