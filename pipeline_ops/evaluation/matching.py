"""Box-by-box matching of a detector's answers: found, confused, missed, false alarm.

COCO's figures (`coco.py`) cover all thresholds and treat each class by itself. This module uses one
threshold, for a person who wants to see mistakes. Pure.

Legend: T true boxes, D detections of one image; boxes [., 4] are ymin xmin ymax xmax.
"""

from __future__ import annotations

import dataclasses

import numpy as np

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

    def sure(self) -> ImageDetections:
        """Returns the detections with a score that is high enough to be shown to a person."""
        kept = self.scores >= MIN_SCORE
        return ImageDetections(self.boxes[kept], self.classes[kept], self.scores[kept])


@dataclasses.dataclass(frozen=True)
class Match:
    """The matches of one image.

    `truth_of`: int [D], the true box that a detection found, -1 for none. `is_ignored`: bool [D],
    true for a detection in a crowd.
    """

    truth_of: np.ndarray
    is_ignored: np.ndarray

    def found_truths(self) -> set[int]:
        return {int(truth) for truth in self.truth_of if truth >= 0}


def match(
    truths_T4: np.ndarray,
    truth_classes: np.ndarray,
    is_crowd: np.ndarray,
    boxes_D4: np.ndarray,
    classes: np.ndarray,
    scores: np.ndarray,
) -> Match:
    """Matches detections with true boxes. Detections with the best scores choose first.

    They choose among the true boxes that are still free: a box of their own class before any other,
    then the one with the largest overlap.
    """
    ious = pairwise_ious(boxes_D4, truths_T4)
    truth_of, is_ignored = np.full(len(boxes_D4), -1), np.zeros(len(boxes_D4), bool)
    free = ~is_crowd.copy()
    for detection in np.argsort(-scores, kind="stable"):
        candidates = np.flatnonzero(free & (ious[detection] >= MIN_IOU))
        if len(candidates):
            own = truth_classes[candidates] == classes[detection]
            truth_of[detection] = candidates[np.lexsort((-ious[detection, candidates], ~own))[0]]
            free[truth_of[detection]] = False
        else:
            is_ignored[detection] = bool(
                (_covered(boxes_D4[detection], truths_T4[is_crowd]) >= MIN_IOU).any()
            )
    return Match(truth_of, is_ignored)


def pairwise_ious(boxes_P4: np.ndarray, boxes_Q4: np.ndarray) -> np.ndarray:
    """Returns the intersection over union of all pairs: float [P, Q]."""
    inter = _intersections(boxes_P4, boxes_Q4)
    union = areas(boxes_P4)[:, None] + areas(boxes_Q4)[None] - inter
    return np.divide(inter, union, out=np.zeros_like(inter), where=union > 0)


def areas(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def size_of(area_pixels: float) -> str:
    return next(name for name, limit in SIZES.items() if area_pixels < limit)


def _covered(box_4: np.ndarray, others_Q4: np.ndarray) -> np.ndarray:
    """Returns the share of a box that each of the others covers."""
    return _intersections(box_4[None], others_Q4)[0] / max(float(areas(box_4[None])[0]), 1e-12)


def _intersections(boxes_P4: np.ndarray, boxes_Q4: np.ndarray) -> np.ndarray:
    low = np.maximum(boxes_P4[:, None, :2], boxes_Q4[None, :, :2])
    high = np.minimum(boxes_P4[:, None, 2:], boxes_Q4[None, :, 2:])
    return np.clip(high - low, 0, None).prod(axis=-1)
