"""The report of a detector: the counterpart of `classifier_page.py`, with boxes on test images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline_ops.evaluation.detector import DetectorFindings
from pipeline_ops.evaluation.matching import ImageDetections, match
from pipeline_ops.evaluation.pictures import NUM_PREDICTIONS, NUM_SHOWN, rank_key, to_data_uri
from pipeline_ops.evaluation.report import MAX_MATRIX_CLASSES, ReportData, render_report
from pipeline_ops.evaluation.report_charts import draw_precision_recall_charts
from pipeline_ops.evaluation.report_rows import build_confusion_cells, limit_class_rows
from pipeline_ops.input.saved_model_client import TrueBoxes
from pipeline_ops.pages.drawing import (
    LARGE_CELL_PIXELS,
    LabelledBox,
    count_boxes,
    decode_image,
    draw_cell,
    draw_grid,
)

_SECTIONS = [
    ("scores", "Precision and recall"),
    ("pictures", "Pictures"),
    ("confusion", "Confusions"),
    ("classes", "Classes"),
    ("sizes", "Sizes"),
]


def render_detector_report(found: DetectorFindings, data: ReportData) -> str:
    """Returns the page as text to be written in UTF-8."""
    challenger, champion = data.figures.challenger, data.figures.champion
    names = data.dataset.class_names
    first, *others = found.evaluations
    curves = [
        [each.precisions for each in evaluation.classes if each.precisions is not None]
        for evaluation in found.evaluations
    ]
    class_curves = [
        (each.name, each.average_precision_50, each.precisions)
        for each in first.classes
        if each.precisions is not None and each.average_precision_50 is not None
    ]
    class_rows = [
        {
            "counts": counts,
            "coco": first.classes[index],
            "champion": others[0].classes[index].average_precision_50 if others else None,
        }
        for index, counts in enumerate(challenger.classes)
    ]
    return render_report(
        "detector.html",
        data,
        _SECTIONS,
        found=found,
        metrics=[
            {
                "name": name,
                "value": value,
                "champion": champion and champion.metrics.get(name),
                "baseline": data.figures.baseline.get(name),
            }
            for name, value in challenger.metrics.items()
        ],
        score_charts=draw_precision_recall_charts(
            [np.mean(known, axis=0) if known else None for known in curves], class_curves
        ),
        classes=limit_class_rows(class_rows, lambda row: row["counts"].recall),
        min_score=found.min_score,
        matrix=build_confusion_cells(challenger) if len(names) <= MAX_MATRIX_CLASSES else None,
        matrix_names=[*names, "nothing"],
        pictures=draw_pictures(found.scenes, found.detections, found.min_score, names),
    )


def draw_detector_predictions(found: DetectorFindings, names: Sequence[str]) -> bytes:
    """Draws some test images as a PNG file: true boxes on the left, predicted ones on the right."""

    def clip(boxes: np.ndarray) -> np.ndarray:  # the values of a diverged network are not finite
        return np.clip(np.nan_to_num(boxes), 0, 1)

    cells = []
    pairs = zip(found.scenes, found.detections, strict=True)
    sample = sorted(pairs, key=lambda pair: -rank_key(pair[0].key))[:NUM_PREDICTIONS]
    for scene, answer in sample:
        image, detected = decode_image(scene.image), answer.filter_by_score(found.min_score)
        true = zip(clip(scene.boxes), scene.classes, strict=True)
        predicted = zip(clip(detected.boxes), detected.classes, detected.scores, strict=True)
        truth = [LabelledBox(box, names[label]) for box, label in true]
        prediction = [LabelledBox(box, names[label], score) for box, label, score in predicted]
        text = f"{count_boxes(len(prediction))} with a score of {found.min_score:g} or more"
        true_text = f"truth: {count_boxes(len(truth))}"
        cells += [
            draw_cell(image, truth, scene.key, true_text, side=LARGE_CELL_PIXELS),
            draw_cell(image, prediction, "", f"prediction: {text}", side=LARGE_CELL_PIXELS),
        ]
    return draw_grid(cells, columns=2)


def draw_pictures(
    scenes: Sequence[TrueBoxes],
    detections: Sequence[ImageDetections],
    min_score: float,
    names: Sequence[str],
) -> list[dict[str, Any]]:
    """Returns test images with truth and answer drawn on them.

    The images with the most mistakes come first. Keys settle ties.
    """
    drawn = [
        _draw_picture(scene, detected.filter_by_score(min_score), names)
        for scene, detected in zip(scenes, detections, strict=True)
    ]
    worst = sorted(drawn, key=lambda picture: (-picture["num_mistakes"], picture["key"]))
    return [picture | {"image": to_data_uri(picture["image"])} for picture in worst[:NUM_SHOWN]]


def _draw_picture(
    scene: TrueBoxes, detected: ImageDetections, names: Sequence[str]
) -> dict[str, Any]:
    found = match(scene, detected)
    matched = set(found.truth_indexes.tolist())
    boxes, counts = [], Counter[str]()
    for i, box in enumerate(scene.boxes):
        is_missed = i not in matched and not scene.is_crowd[i]
        counts["missed"] += is_missed
        name = names[scene.classes[i]] + (" missed" if is_missed else "")
        boxes.append(_to_box_style(box, name, "truth-box"))
    for i, truth in enumerate(found.truth_indexes):
        if truth >= 0:
            kind = "" if scene.classes[truth] == detected.classes[i] else "confused"
        else:
            kind = "" if found.is_ignored[i] else "false alarm"
        counts[kind] += 1
        name = f"{names[detected.classes[i]]} {detected.scores[i]:.2f}"
        boxes.append(_to_box_style(detected.boxes[i], name, "answer-box" if kind else "right-box"))
    texts = [
        f"{counts[kind]} {kind}{'s' if kind == 'false alarm' and counts[kind] > 1 else ''}"
        for kind in ("missed", "false alarm", "confused")
        if counts[kind]
    ]
    return {
        "key": scene.key,
        "image": scene.image,
        "boxes": boxes,
        "num_mistakes": counts.total() - counts[""],
        "text": ", ".join(texts) or "all right",
    }


def _to_box_style(box: np.ndarray, text: str, style: str) -> dict[str, Any]:
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
