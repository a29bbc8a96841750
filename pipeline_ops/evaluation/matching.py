"""Box-by-box matching of a detector's answers: found, confused, missed, false alarm.

COCO's figures (`coco.py`) cover all thresholds and treat each class by itself. This module uses one
threshold, to show mistakes to a person. Pure.

Legend: T true boxes, D detections of one image. Boxes [., 4] are ymin xmin ymax xmax.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from pipeline_ops.input.detections import TrueBoxes

MIN_SCORE = 0.5
MIN_IOU = 0.5
SIZES = {"small": 32.0**2, "medium": 96.0**2, "large": float("inf")}
"""COCO's sizes: the area in pixels, each up to its limit."""


@dataclasses.dataclass(frozen=True)
class ImageDetections:
    """The answer of one model to one image: boxes float [D, 4] as fractions, classes, scores."""

    boxes: np.ndarray
    classes: np.ndarray
    scores: np.ndarray

    def filter_by_score(self) -> ImageDetections:
        """Returns the detections with a score that is high enough to be shown to a person."""
        kept = self.scores >= MIN_SCORE
        return ImageDetections(self.boxes[kept], self.classes[kept], self.scores[kept])


@dataclasses.dataclass(frozen=True)
class Match:
    """The matches of one image.

    `truth_indexes`: int [D], the true box that a detection found, -1 for none.
    `is_ignored`: bool [D], true for a detection in a crowd.
    """

    truth_indexes: np.ndarray
    is_ignored: np.ndarray


def match(truth: TrueBoxes, detected: ImageDetections) -> Match:
    """Matches detections with true boxes. Detections with the best scores choose first.

    They choose among the true boxes that are still free: a box of the same class before any other,
    then the one with the largest overlap.
    """
    ious = compute_pairwise_ious(detected.boxes, truth.boxes)
    num_detections = len(detected.boxes)
    truth_indexes, is_ignored = np.full(num_detections, -1), np.zeros(num_detections, bool)
    free = ~truth.is_crowd
    for i in np.argsort(-detected.scores, kind="stable"):
        candidates = np.flatnonzero(free & (ious[i] >= MIN_IOU))
        if len(candidates):
            is_other_class = truth.classes[candidates] != detected.classes[i]
            order = np.lexsort((-ious[i, candidates], is_other_class))
            truth_indexes[i] = candidates[order[0]]
            free[truth_indexes[i]] = False
        else:
            box, crowds = detected.boxes[i : i + 1], truth.boxes[truth.is_crowd]
            coverage = _compute_intersections(box, crowds) / max(
                float(compute_areas(box)[0]), 1e-12
            )
            is_ignored[i] = (coverage >= MIN_IOU).any()
    return Match(truth_indexes, is_ignored)


def compute_pairwise_ious(boxes_P4: np.ndarray, boxes_Q4: np.ndarray) -> np.ndarray:
    """Returns the intersection over union of all pairs: float [P, Q]."""
    inter = _compute_intersections(boxes_P4, boxes_Q4)
    union = compute_areas(boxes_P4)[:, None] + compute_areas(boxes_Q4)[None] - inter
    ious = np.zeros_like(inter)
    np.divide(inter, union, out=ious, where=union > 0)
    return ious


def compute_areas(boxes: np.ndarray) -> np.ndarray:
    areas: np.ndarray = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    return areas


def classify_size(area_pixels: float) -> str:
    return next(name for name, limit in SIZES.items() if area_pixels < limit)


def _compute_intersections(boxes_P4: np.ndarray, boxes_Q4: np.ndarray) -> np.ndarray:
    low = np.maximum(boxes_P4[:, None, :2], boxes_Q4[None, :, :2])
    high = np.minimum(boxes_P4[:, None, 2:], boxes_Q4[None, :, 2:])
    inter: np.ndarray = np.prod(np.clip(high - low, 0, None), axis=-1)
    return inter
