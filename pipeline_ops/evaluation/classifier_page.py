"""The report of a classifier: metrics with intervals, slices, and pictures of its mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline_ops.evaluation.classifier import ClassifierFindings
from pipeline_ops.evaluation.metrics import compute_wilson_interval_95
from pipeline_ops.evaluation.pictures import to_data_uri
from pipeline_ops.evaluation.predictions import ShownExample
from pipeline_ops.evaluation.report import MAX_MATRIX_CLASSES, ReportData, render_report
from pipeline_ops.evaluation.report_charts import (
    draw_calibration_chart,
    draw_precision_recall_charts,
)
from pipeline_ops.evaluation.report_rows import (
    MAX_CLASS_ROWS,
    build_confusion_cells,
    build_metric_rows,
    build_slice_tables,
    find_confused_pairs,
    limit_class_rows,
)
from pipeline_ops.pages.drawing import LARGE_CELL_PIXELS, decode_image, draw_cell, draw_grid

_MAX_PAIRS = 12


def render_classifier_report(found: ClassifierFindings, data: ReportData) -> str:
    """Returns the page as text to be written in UTF-8."""
    figures, names = data.figures, data.dataset.class_names
    challenger, champion = figures.challenger, figures.champion
    num_right = sum(row[index] for index, row in enumerate(challenger.confusion))
    sections = [
        *([("slices", "Slices")] if figures.slices else []),
        ("scores", "Precision and calibration"),
        ("confusion", "Confusions"),
        ("mistakes", "Mistakes"),
        ("surprises", "Surprises"),
        ("classes", "Classes"),
    ]
    class_rows = [
        {"challenger": row, "champion": champion and champion.classes[index]}
        for index, row in enumerate(challenger.classes)
    ]
    class_curves = [
        (row.name, row.average_precision, found.curves[0].by_class[index])
        for index, row in enumerate(challenger.classes)
        if row.average_precision is not None
    ]
    return render_report(
        "classifier.html",
        data,
        sections,
        found.top_k,
        found=found,
        interval=compute_wilson_interval_95(num_right, figures.num_examples),
        metrics=build_metric_rows(figures, found.top_k),
        score_charts=[
            *draw_precision_recall_charts([curves.mean for curves in found.curves], class_curves),
            draw_calibration_chart(challenger, champion),
        ],
        slices=build_slice_tables(figures.slices),
        classes=limit_class_rows(class_rows, lambda row: row["challenger"].recall),
        num_hidden_classes=max(0, len(names) - MAX_CLASS_ROWS),
        empty_classes=[row.name for row in challenger.classes if not row.support],
        matrix=build_confusion_cells(challenger) if len(names) <= MAX_MATRIX_CLASSES else None,
        pairs=find_confused_pairs(challenger, names)[:_MAX_PAIRS],
        mistakes=_to_pictures(found.mistakes),
        surprises=_to_pictures(found.surprises),
        num_mistakes=figures.num_examples - num_right,
        is_small=max(data.dataset.image_shape[:2]) <= 96,
    )


def draw_classifier_predictions(found: ClassifierFindings, names: Sequence[str]) -> bytes:
    """Draws some test images as a PNG file: the true class on the left, the answer on the right."""
    cells = []
    for shown in found.samples:
        image, color = decode_image(shown.image), "#080" if shown.is_right else "#b00"
        answer = f"prediction: {names[shown.prediction]} {shown.confidence:.2f}"
        truth = f"truth: {names[shown.label]}"
        cells += [
            draw_cell(image, (), shown.key, truth, side=LARGE_CELL_PIXELS),
            draw_cell(image, (), "", answer, color, side=LARGE_CELL_PIXELS),
        ]
    return draw_grid(cells, columns=2)


def _to_pictures(examples: Sequence[ShownExample]) -> list[dict[str, Any]]:
    return [{"example": shown, "image": to_data_uri(shown.image)} for shown in examples]
