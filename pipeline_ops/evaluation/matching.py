"""Box-by-box matching of a detector's answers: found, confused, missed, false alarm.

COCO's figures (`coco.py`) cover all thresholds and treat each class by itself. This module uses one
threshold, the one with the largest F1, to show mistakes to a person. Pure.

Legend: T true boxes, D detections of one image. Boxes [., 4] are ymin xmin ymax xmax.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from pipeline_ops.input.saved_model_client import TrueBoxes

MIN_IOU = 0.5
_LOWEST_SCORE, _HIGHEST_SCORE = 0.05, 0.95
_DEFAULT_SCORE = 0.5
"""The threshold where no detection is right."""
SIZES = {"small": 32.0**2, "medium": 96.0**2, "large": float("inf")}
"""COCO's sizes: the area in pixels, each up to its limit."""


@dataclasses.dataclass(frozen=True)
class ImageDetections:
    """The answer of one model to one image: boxes float [D, 4] as fractions, classes, scores."""

    boxes: np.ndarray
    classes: np.ndarray
    scores: np.ndarray

    def filter_by_score(self, min_score: float) -> ImageDetections:
        """Returns the detections with at least this score."""
        kept = self.scores >= min_score
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


def recommend_min_score(
    scenes: Sequence[TrueBoxes], detections: Sequence[ImageDetections]
) -> float:
    """Returns the score threshold with the largest F1, in hundredths.

    Detections choose true boxes by descending score, so the matches above a threshold are the same
    with and without the detections below it.

    Args:
      scenes: the true boxes of all images.
      detections: the answers of one model, in the same order.
    """
    scores, hits, num_true = [np.empty(0)], [np.empty(0, bool)], 0
    for scene, answer in zip(scenes, detections, strict=True):
        detected = answer.filter_by_score(_LOWEST_SCORE)
        found = match(scene, detected)
        is_hit = found.truth_indexes >= 0
        is_hit[is_hit] = scene.classes[found.truth_indexes[is_hit]] == detected.classes[is_hit]
        scores.append(detected.scores[~found.is_ignored])
        hits.append(is_hit[~found.is_ignored])
        num_true += int((~scene.is_crowd).sum())
    hundredths = np.floor(np.concatenate(scores) * 100 + 1e-6)
    all_hits = np.concatenate(hits)
    if not all_hits.any():
        return _DEFAULT_SCORE
    order = np.argsort(-hundredths, kind="stable")
    counts = np.arange(1, len(order) + 1)
    f1 = 2 * np.cumsum(all_hits[order]) / (counts + num_true)
    # Only the last of several detections with the same score is a threshold.
    is_last = np.append(np.diff(hundredths[order]) != 0, True)
    best = np.flatnonzero(is_last)[np.argmax(f1[is_last])]
    return float(np.clip(hundredths[order][best] / 100, _LOWEST_SCORE, _HIGHEST_SCORE))


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
