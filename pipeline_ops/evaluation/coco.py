"""COCO's metrics of a detector: twelve figures, figures by class, precision-recall curves.

The matching is faster-coco-eval's, in C++. The extra `detection` installs it. The figures equal
those of pycocotools (tests compare them). Pure: true boxes and detections in, figures out. Running
the models is the caller's part.

Legend: T true boxes, D detections, C classes, R the 101 recalls of `scores.RECALLS`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from pipeline_ops.errors import ConfigError, DataError

_ANY_SIZE, _SMALL, _MEDIUM, _LARGE = range(4)
_IOU_50, _IOU_75 = 0, 5
_MOST_DETECTIONS = (1, 10, 100)


@dataclasses.dataclass(frozen=True)
class Truths:
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
    """D boxes that a model has found, as in Truths, with `scores` float64 [D].

    COCO counts the 100 detections of an image with the best scores.
    """

    images: np.ndarray
    boxes: np.ndarray
    classes: np.ndarray
    scores: np.ndarray


@dataclasses.dataclass(frozen=True)
class DetectionClass:
    """One class. Its figures are None if it has no true box.

    `precisions` is float [R], at an overlap of 0.5.
    """

    name: str
    num_boxes: int
    average_precision: float | None
    average_precision_50: float | None
    average_recall: float | None
    precisions: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class DetectionEvaluation:
    """The result. `metrics` has COCO's twelve figures, None where no true box has the size."""

    metrics: dict[str, float | None]
    classes: list[DetectionClass]


def evaluate_detections(
    truths: Truths, detections: DetectionTable, num_images: int, class_names: Sequence[str]
) -> DetectionEvaluation:
    """Matches detections with true boxes by image and class, as COCO does for boxes.

    Raises:
      ConfigError: the extra `detection` is not installed.
      DataError: a box or a score is not finite, or an image or a class does not exist.
    """
    library = _import_library()
    for what, boxes in (("true box", truths), ("detection", detections)):
        _refuse_impossible(what, boxes, num_images, len(class_names))
    with _without_garbage_collection():
        evaluator = _match(library, truths, detections, num_images, class_names)
    precision, recall = (np.asarray(evaluator.eval[name]) for name in ("precision", "recall"))
    counts = np.bincount(truths.classes[~truths.is_crowd], minlength=len(class_names))
    return DetectionEvaluation(
        _twelve(precision, recall),
        [
            _class_figures(name, int(counts[index]), precision[:, :, index], recall[:, index])
            for index, name in enumerate(class_names)
        ],
    )


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disables garbage collection.

    There is a dictionary for each of a hundred thousand boxes, and all are in use. Scanning them
    again and again takes a quarter of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _match(
    library: ModuleType,
    truths: Truths,
    detections: DetectionTable,
    num_images: int,
    class_names: Sequence[str],
) -> Any:
    """Runs the library's evaluator and returns it."""
    truth = library.COCO(
        {
            "images": [{"id": index} for index in range(num_images)],
            "annotations": _annotations(truths),
            "categories": [{"id": index, "name": name} for index, name in enumerate(class_names)],
        }
    )
    evaluator = library.COCOeval_faster(truth, truth.loadRes(_results(detections)), "bbox")
    evaluator.evaluate()
    evaluator.accumulate()
    return evaluator


def _import_library() -> ModuleType:
    try:
        import faster_coco_eval
    except ImportError as error:
        raise ConfigError(
            f"COCO figures need the package faster-coco-eval ({error}); "
            "install trainyard[detection]"
        ) from None
    return faster_coco_eval


def _refuse_impossible(
    what: str, boxes: Truths | DetectionTable, num_images: int, num_classes: int
) -> None:
    bad = ~np.isfinite(boxes.boxes).all(axis=1) | (boxes.images < 0) | (boxes.images >= num_images)
    bad |= (boxes.classes < 0) | (boxes.classes >= num_classes)
    if isinstance(boxes, DetectionTable):
        bad |= ~np.isfinite(boxes.scores)
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"{what} {i}: image {boxes.images[i]} of {num_images}, "
            f"class {boxes.classes[i]} of {num_classes}, "
            f"box {boxes.boxes[i].tolist()}: a box has finite corners and a score, "
            "and an image and a class that there are"
        )


def _annotations(truths: Truths) -> list[dict[str, Any]]:
    sizes = _as_xywh(truths.boxes)
    columns = zip(
        truths.images.tolist(),
        truths.classes.tolist(),
        sizes.tolist(),
        (sizes[:, 2] * sizes[:, 3]).tolist(),
        truths.is_crowd.astype(int).tolist(),
        strict=True,
    )
    return [
        {
            "id": number,
            "image_id": image,
            "category_id": category,
            "bbox": box,
            "area": area,
            "iscrowd": crowd,
        }  # 0 would mean "no match"
        for number, (image, category, box, area, crowd) in enumerate(columns, 1)
    ]


def _results(detections: DetectionTable) -> list[dict[str, Any]]:
    columns = zip(
        detections.images.tolist(),
        detections.classes.tolist(),
        _as_xywh(detections.boxes).tolist(),
        detections.scores.tolist(),
        strict=True,
    )
    return [
        {"image_id": image, "category_id": category, "bbox": box, "score": score}
        for image, category, box, score in columns
    ]


def _as_xywh(boxes: np.ndarray) -> np.ndarray:
    """Converts ymin xmin ymax xmax to COCO's xmin ymin width height."""
    ymin, xmin, ymax, xmax = np.asarray(boxes, np.float64).reshape(-1, 4).T
    return np.stack([xmin, ymin, xmax - xmin, ymax - ymin], axis=1)


def _twelve(precision: np.ndarray, recall: np.ndarray) -> dict[str, float | None]:
    """Returns the twelve figures in COCO's order.

    `precision` is [overlaps, R, C, sizes, limits], `recall` is [overlaps, C, sizes, limits]. Both
    are -1 where there is nothing to find.
    """
    most = len(_MOST_DETECTIONS) - 1
    sizes = {"small": _SMALL, "medium": _MEDIUM, "large": _LARGE}
    return {
        "ap": _mean(precision[:, :, :, _ANY_SIZE, most]),
        "ap_50": _mean(precision[_IOU_50, :, :, _ANY_SIZE, most]),
        "ap_75": _mean(precision[_IOU_75, :, :, _ANY_SIZE, most]),
        **{f"ap_{name}": _mean(precision[:, :, :, size, most]) for name, size in sizes.items()},
        **{
            f"ar_{limit}": _mean(recall[:, :, _ANY_SIZE, index])
            for index, limit in enumerate(_MOST_DETECTIONS)
        },
        **{f"ar_{name}": _mean(recall[:, :, size, most]) for name, size in sizes.items()},
    }


def _class_figures(
    name: str, num_boxes: int, precision: np.ndarray, recall: np.ndarray
) -> DetectionClass:
    """Returns the figures of one class.

    `precision` is [overlaps, R, sizes, limits], `recall` is [overlaps, sizes, limits].
    """
    at_50 = precision[_IOU_50, :, _ANY_SIZE, -1]
    return DetectionClass(
        name,
        num_boxes,
        _mean(precision[:, :, _ANY_SIZE, -1]),
        _mean(at_50),
        _mean(recall[:, _ANY_SIZE, -1]),
        at_50 if (at_50 > -1).all() else None,
    )


def _mean(values: np.ndarray) -> float | None:
    known = values[values > -1]
    return float(known.mean()) if known.size else None
