"""COCO's metrics of a detector: twelve figures, figures by class, precision-recall curves.

The matching is faster-coco-eval's, in C++. The extra `train` installs it. The figures equal
those of pycocotools (tests compare them). Pure: true boxes and detections in, figures out.

Legend: T true boxes, D detections, C classes, R the 101 recalls of `metrics.RECALL_THRESHOLDS`.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline_ops.errors import ConfigError, DataError

_ALL_SIZES, _SMALL, _MEDIUM, _LARGE = range(4)
_IOU_50, _IOU_75 = 0, 5
_MAX_DETECTIONS = (1, 10, 100)


@dataclasses.dataclass(frozen=True)
class GroundTruths:
    """T true boxes. A detection inside a crowd is neither right nor wrong.

    `images`: int64 [T], the index of each box's image. `boxes`: float64 [T, 4], ymin xmin ymax xmax
    in pixels. `classes`: int64 [T]. `is_crowd`: bool [T].
    """

    images: np.ndarray
    boxes: np.ndarray
    classes: np.ndarray
    is_crowd: np.ndarray


@dataclasses.dataclass(frozen=True)
class DetectionTable:
    """D boxes that a model has found, as in GroundTruths, with `scores` float64 [D].

    COCO counts the 100 detections of an image with the best scores.
    """

    images: np.ndarray
    boxes: np.ndarray
    classes: np.ndarray
    scores: np.ndarray


@dataclasses.dataclass(frozen=True)
class DetectionClassMetrics:
    """One class. Its figures are None if it has no true box.

    `precisions` is float [R], at an overlap of 0.5.
    """

    name: str
    average_precision: float | None
    average_precision_50: float | None
    precisions: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class DetectionEvaluation:
    """The result. `metrics` has COCO's twelve figures, None where no true box has the size."""

    metrics: dict[str, float | None]
    classes: list[DetectionClassMetrics]


def evaluate_detections(
    truths: GroundTruths, detections: DetectionTable, num_images: int, class_names: Sequence[str]
) -> DetectionEvaluation:
    """Matches detections with true boxes by image and class, as COCO does for boxes.

    Raises:
      ConfigError: faster-coco-eval is not installed.
      DataError: a box or a score is not finite, or an image or a class does not exist.
    """
    for kind, boxes in (("true box", truths), ("detection", detections)):
        _validate_boxes(kind, boxes, num_images, len(class_names))
    # There is a dictionary for each of a hundred thousand boxes, and all are in use. Scanning them
    # for garbage again and again takes a quarter of the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        precision, recall = _run_coco(truths, detections, num_images, class_names)
    finally:
        if was_enabled:
            gc.enable()
    return DetectionEvaluation(
        _compute_coco_metrics(precision, recall),
        [
            DetectionClassMetrics(
                name,
                _mean(precision[:, :, index, _ALL_SIZES, -1]),
                _mean(at_50 := precision[_IOU_50, :, index, _ALL_SIZES, -1]),
                at_50 if (at_50 > -1).all() else None,
            )
            for index, name in enumerate(class_names)
        ],
    )


def _run_coco(
    truths: GroundTruths, detections: DetectionTable, num_images: int, class_names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns precision [overlaps, R, C, sizes, limits] and recall [overlaps, C, sizes, limits].

    Both are -1 where there is nothing to find.
    """
    try:
        import faster_coco_eval
    except ImportError as error:
        raise ConfigError(
            f"COCO's figures need the package faster-coco-eval ({error}). "
            "Install the extra train: pip install '.[train]' in a clone of Trainyard."
        ) from None
    annotations, results = _to_results(truths), _to_results(detections)
    for number, annotation in enumerate(annotations):
        annotation["id"] = number + 1  # 0 would mean "no match"
        annotation["area"] = annotation["bbox"][2] * annotation["bbox"][3]
        annotation["iscrowd"] = int(truths.is_crowd[number])
    for result, score in zip(results, detections.scores.tolist(), strict=True):
        result["score"] = score
    truth = faster_coco_eval.COCO(
        {
            "images": [{"id": index} for index in range(num_images)],
            "annotations": annotations,
            "categories": [{"id": index, "name": name} for index, name in enumerate(class_names)],
        }
    )
    evaluator = faster_coco_eval.COCOeval_faster(truth, truth.loadRes(results), "bbox")
    evaluator.evaluate()
    evaluator.accumulate()
    return np.asarray(evaluator.eval["precision"]), np.asarray(evaluator.eval["recall"])


def _validate_boxes(
    kind: str, boxes: GroundTruths | DetectionTable, num_images: int, num_classes: int
) -> None:
    bad = ~np.isfinite(boxes.boxes).all(axis=1) | (boxes.images < 0) | (boxes.images >= num_images)
    bad |= (boxes.classes < 0) | (boxes.classes >= num_classes)
    if isinstance(boxes, DetectionTable):
        bad |= ~np.isfinite(boxes.scores)
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"{kind} {i} has image {boxes.images[i]} of {num_images}, "
            f"class {boxes.classes[i]} of {num_classes}, box {boxes.boxes[i].tolist()}. "
            "Corners and score must be finite, image and class must exist."
        )


def _to_results(boxes: GroundTruths | DetectionTable) -> list[dict[str, Any]]:
    """Converts boxes to COCO's records, whose boxes are xmin, ymin, width, height."""
    ymin, xmin, ymax, xmax = np.asarray(boxes.boxes, np.float64).reshape(-1, 4).T
    xywh = np.stack([xmin, ymin, xmax - xmin, ymax - ymin], axis=1)
    columns = boxes.images.tolist(), boxes.classes.tolist(), xywh.tolist()
    return [
        {"image_id": image, "category_id": category, "bbox": box}
        for image, category, box in zip(*columns, strict=True)
    ]


def _compute_coco_metrics(precision: np.ndarray, recall: np.ndarray) -> dict[str, float | None]:
    """Returns the twelve figures in COCO's order, under the names that most papers use."""
    sizes = {"small": _SMALL, "medium": _MEDIUM, "large": _LARGE}
    return {
        "map": _mean(precision[..., _ALL_SIZES, -1]),
        "map_50": _mean(precision[_IOU_50, ..., _ALL_SIZES, -1]),
        "map_75": _mean(precision[_IOU_75, ..., _ALL_SIZES, -1]),
        **{f"map_{name}": _mean(precision[..., size, -1]) for name, size in sizes.items()},
        **{
            f"mar_{limit}": _mean(recall[..., _ALL_SIZES, index])
            for index, limit in enumerate(_MAX_DETECTIONS)
        },
        **{f"mar_{name}": _mean(recall[..., size, -1]) for name, size in sizes.items()},
    }


def _mean(values: np.ndarray) -> float | None:
    known = values[values > -1]
    return float(known.mean()) if known.size else None
