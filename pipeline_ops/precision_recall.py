"""Precision and recall from counts: one formula for a training's validation and for the evaluation.

Legend: P points of a curve, from the highest score to the lowest.
"""

from __future__ import annotations

import numpy as np

RECALL_THRESHOLDS = np.linspace(0.0, 1.0, 101)
"""The recalls at which precision-recall curves are read, as in COCO."""


def compute_rates(
    right: np.ndarray, predicted: np.ndarray, support: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns precision, recall and F1 from counts by class. 0 / 0 is 0."""

    def divide(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
        return np.divide(parts, wholes, out=np.zeros(parts.shape), where=wholes > 0)

    return {
        "precision": divide(right, predicted),
        "recall": divide(right, support),
        "f1": divide(2 * right, support + predicted),
    }


def read_precisions(right_P: np.ndarray, found_P: np.ndarray, num_true: float) -> np.ndarray:
    """Returns the precision at each of RECALL_THRESHOLDS, float64 [101], as COCO does.

    It is the best one at this recall or above, and 0 beyond the last point. `right_P` and `found_P`
    are the right detections and all detections up to each point.
    """
    precisions_P = right_P / np.maximum(found_P, 1)
    best_P = np.maximum.accumulate(precisions_P[::-1])[::-1]
    return np.append(best_P, 0.0)[np.searchsorted(right_P / num_true, RECALL_THRESHOLDS)]
