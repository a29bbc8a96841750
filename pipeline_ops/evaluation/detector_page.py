"""The report of a detector: the counterpart of `report.py`, with boxes on the test images."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline_ops.evaluation.coco import DetectionEvaluation
from pipeline_ops.evaluation.matching import MIN_SCORE, ImageDetections, match
from pipeline_ops.evaluation.pictures import data_uri
from pipeline_ops.evaluation.report import Background, render_report
from pipeline_ops.evaluation.report_rows import MAX_CLASS_ROWS, matrix, recall_points
from pipeline_ops.evaluation.svg import Line, share_chart
from pipeline_ops.input.detections import TrueBoxes

_MAX_CLASS_CURVES = 5
_MAX_MATRIX_CLASSES = 30


@dataclasses.dataclass(frozen=True)
class DetectorData(Background):
    """The contents of the page.

    `evaluations` are those of the challenger and, if it was evaluated, of the champion. `by_size`
    has the number of boxes, and the number of those that were found.
    """

    why_alone: str | None
    evaluations: list[DetectionEvaluation]
    by_size: dict[str, list[int]]
    pictures: list[dict[str, Any]]


def render_detector(data: DetectorData) -> str:
    """Returns the page as text to be written in UTF-8."""
    champion = data.figures.champion
    return render_report(
        "detector.html",
        data,
        metrics=[
            {
                "name": name,
                "value": value,
                "champion": champion.metrics.get(name) if champion else None,
            }
            for name, value in data.figures.challenger.metrics.items()
        ],
        score_charts=_curves(data.evaluations),
        classes=_class_rows(data)[:MAX_CLASS_ROWS],
        min_score=MIN_SCORE,
        matrix=matrix(data.figures.challenger)
        if len(data.dataset.class_names) <= _MAX_MATRIX_CLASSES
        else None,
        matrix_names=[*data.dataset.class_names, "nothing"],
    )


def _curves(evaluations: Sequence[DetectionEvaluation]) -> list[tuple[str, list[Line], Any]]:
    """Returns precision against recall at an overlap of 0.5.

    The first chart has the mean of all classes, the second one the weakest classes.
    """
    means = []
    for name, style, evaluation in zip(
        ("challenger", "champion"), ("validation", "champion"), evaluations, strict=False
    ):
        known = [each.precisions for each in evaluation.classes if each.precisions is not None]
        means += [Line(name, style, recall_points(np.mean(known, axis=0)))] if known else []
    weakest = sorted(
        (each for each in evaluations[0].classes if each.precisions is not None),
        key=lambda each: each.average_precision_50,
    )
    by_class = [
        Line(
            f"{each.name} ({each.average_precision_50:.3f})",
            f"series-{number}",
            recall_points(each.precisions),
        )
        for number, each in enumerate(weakest[:_MAX_CLASS_CURVES])
    ]
    return [
        (
            "Precision and recall",
            means[::-1],
            share_chart("Precision against recall, mean of all classes", "recall", means[::-1]),
        ),
        (
            "Weakest classes",
            by_class,
            share_chart("Precision against recall of the weakest classes", "recall", by_class),
        ),
    ]


def _class_rows(data: DetectorData) -> list[dict[str, Any]]:
    """Returns a row for each class.

    More than `MAX_CLASS_ROWS` rows are sorted by recall, the lowest first.
    """
    others = (
        data.evaluations[1].classes
        if len(data.evaluations) > 1
        else [None] * len(data.evaluations[0].classes)
    )
    rows = [
        {"ours": ours, "cocos": cocos, "champion": champion and champion.average_precision_50}
        for ours, cocos, champion in zip(
            data.figures.challenger.classes, data.evaluations[0].classes, others, strict=True
        )
    ]
    return (
        sorted(rows, key=lambda row: (row["ours"].recall, row["ours"].name))
        if len(rows) > MAX_CLASS_ROWS
        else rows
    )


def pictures(
    scenes: Sequence[TrueBoxes],
    answers: Sequence[ImageDetections],
    names: Sequence[str],
    count: int,
) -> list[dict[str, Any]]:
    """Returns test images with truth and answer drawn on them.

    The images with the most mistakes come first. Keys settle ties.
    """
    drawn = [
        _picture(scene, answer.sure(), names) for scene, answer in zip(scenes, answers, strict=True)
    ]
    worst = sorted(drawn, key=lambda picture: (-picture["num_mistakes"], picture["key"]))[:count]
    return [picture | {"image": data_uri(picture["image"])} for picture in worst]


def _picture(scene: TrueBoxes, answer: ImageDetections, names: Sequence[str]) -> dict[str, Any]:
    found = match(
        scene.boxes, scene.classes, scene.is_crowd, answer.boxes, answer.classes, answer.scores
    )
    hit = found.found_truths()
    missed = [i for i in range(len(scene.boxes)) if i not in hit and not scene.is_crowd[i]]
    boxes, counts = [], {"missed": len(missed), "false alarms": 0, "confused": 0}
    boxes += [
        _drawn(
            scene.boxes[i],
            names[scene.classes[i]] + (" missed" if i in missed else ""),
            "truth-box",
        )
        for i in range(len(scene.boxes))
    ]
    for i, truth in enumerate(found.truth_of):
        name = f"{names[answer.classes[i]]} {answer.scores[i]:.2f}"
        is_right = truth >= 0 and scene.classes[truth] == answer.classes[i]
        kind = (
            "right"
            if is_right or found.is_ignored[i]
            else "confused"
            if truth >= 0
            else "false alarms"
        )
        if kind in counts:
            counts[kind] += 1
            boxes.append(_drawn(answer.boxes[i], name, "answer-box"))
        else:
            boxes.append(_drawn(answer.boxes[i], name, "right-box"))
    return {
        "key": scene.key,
        "image": scene.image,
        "boxes": boxes,
        "num_mistakes": sum(counts.values()),
        "text": ", ".join(
            f"{number} {_counted(kind, number)}" for kind, number in counts.items() if number
        )
        or "all right",
    }


def _counted(kind: str, number: int) -> str:
    return "false alarm" if (kind, number) == ("false alarms", 1) else kind


def _drawn(box: np.ndarray, text: str, style: str) -> dict[str, Any]:
    """Converts a box to percent, as the style of the page's boxes needs it."""
    ymin, xmin, ymax, xmax = (100 * float(edge) for edge in box)
    return {
        "style": style,
        "text": text,
        "left": xmin,
        "top": ymin,
        "width": xmax - xmin,
        "height": ymax - ymin,
    }
