"""COCO's metrics of a detector: twelve figures, figures by class, precision-recall curves.

The matching is faster-coco-eval's, in C++. The extra `train` installs it. The figures equal
those of pycocotools (tests compare them). Pure: true boxes and detections in, figures out.

Legend: D detections of one image, R the 101 recalls of `metrics.RECALL_THRESHOLDS`.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.input.saved_model_client import TrueBoxes

_ALL_SIZES, _SMALL, _MEDIUM, _LARGE = range(4)
_IOU_50, _IOU_75 = 0, 5
_MAX_DETECTIONS = (1, 10, 100)
"""COCO counts the 100 detections of an image with the best scores."""


@dataclasses.dataclass(frozen=True)
class ImageDetections:
    """The answer of one model to one image.

    `boxes`: float [D, 4], ymin xmin ymax xmax as fractions. `classes`: int [D]. `scores`: float
    [D].
    """

    boxes: np.ndarray
    classes: np.ndarray
    scores: np.ndarray

    def filter_by_score(self, min_score: float) -> ImageDetections:
        """Returns the detections with at least this score."""
        kept = self.scores >= min_score
        return ImageDetections(self.boxes[kept], self.classes[kept], self.scores[kept])


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
    """The result. `metrics` are COCO's twelve figures, without those of sizes that no box has."""

    metrics: dict[str, float]
    classes: list[DetectionClassMetrics]


def evaluate_boxes(
    scenes: Sequence[TrueBoxes],
    detections: Sequence[ImageDetections],
    size: tuple[int, int],
    class_names: Sequence[str],
) -> DetectionEvaluation:
    """Matches the answers of one model with true boxes by image and class, as COCO does for boxes.

    A detection inside a crowd is neither right nor wrong.

    Args:
      scenes: all test images.
      detections: the answers, in the same order.
      size: height and width of the images in pixels.

    Raises:
      ConfigError: faster-coco-eval is not installed.
      DataError: a box or a score is not finite, or a class does not exist.
    """
    # There is a dictionary for each of a hundred thousand boxes, and all are in use. Scanning them
    # for garbage again and again takes a quarter of the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        precision, recall = _run_coco(scenes, detections, size, class_names)
    finally:
        if was_enabled:
            gc.enable()
    return DetectionEvaluation(
        _compute_metrics(precision, recall),
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
    scenes: Sequence[TrueBoxes],
    detections: Sequence[ImageDetections],
    size: tuple[int, int],
    class_names: Sequence[str],
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
    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for image, (scene, found) in enumerate(zip(scenes, detections, strict=True)):
        where = image, scene.key, size, len(class_names)
        for record, is_crowd in zip(_to_records(scene, *where), scene.is_crowd, strict=True):
            _, _, width, height = record["bbox"]
            record |= {"area": width * height, "iscrowd": int(is_crowd)}
            annotations.append(record | {"id": len(annotations) + 1})  # 0 would mean "no match"
        for record, score in zip(_to_records(found, *where), found.scores, strict=True):
            results.append(record | {"score": float(score)})
    truth = faster_coco_eval.COCO(
        {
            "images": [{"id": index} for index in range(len(scenes))],
            "annotations": annotations,
            "categories": [{"id": index, "name": name} for index, name in enumerate(class_names)],
        }
    )
    evaluator = faster_coco_eval.COCOeval_faster(truth, truth.loadRes(results), "bbox")
    evaluator.evaluate()
    evaluator.accumulate()
    return np.asarray(evaluator.eval["precision"]), np.asarray(evaluator.eval["recall"])


def _to_records(
    boxes: TrueBoxes | ImageDetections,
    image: int,
    key: str,
    size: tuple[int, int],
    num_classes: int,
) -> list[dict[str, Any]]:
    """Converts the boxes of one image to COCO's: xmin, ymin, width, height in pixels."""
    corners = boxes.boxes.astype(np.float64) * np.array([*size, *size])
    bad = ~np.isfinite(corners).all(axis=1) | (boxes.classes < 0) | (boxes.classes >= num_classes)
    if isinstance(boxes, ImageDetections):
        bad |= ~np.isfinite(boxes.scores)
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"{key}: {'detection' if isinstance(boxes, ImageDetections) else 'true box'} {i} has "
            f"class {boxes.classes[i]} of {num_classes}, box {corners[i].tolist()}. "
            "Corners and score must be finite, and the class must exist."
        )
    ymin, xmin, ymax, xmax = corners.T
    xywh = np.stack([xmin, ymin, xmax - xmin, ymax - ymin], axis=1).tolist()
    return [
        {"image_id": image, "category_id": category, "bbox": box}
        for category, box in zip(boxes.classes.tolist(), xywh, strict=True)
    ]


def _compute_metrics(precision: np.ndarray, recall: np.ndarray) -> dict[str, float]:
    """Returns the known figures in COCO's order, under the names that most papers use."""
    sizes = {"small": _SMALL, "medium": _MEDIUM, "large": _LARGE}
    metrics = {
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
    return {name: value for name, value in metrics.items() if value is not None}


def _mean(values: np.ndarray) -> float | None:
    known = values[values > -1]
    return float(known.mean()) if known.size else None
