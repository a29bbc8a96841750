"""The quality of a classifier's probabilities: ranks, areas under curves, calibration.

Plain numpy, pure functions. The figures equal scikit-learn's, also for ties (tests compare them).

Legend: N examples, C classes.
"""

from __future__ import annotations

import numpy as np

from pipeline_ops.artifacts.results import CalibrationBin

RECALL_THRESHOLDS = np.linspace(0.0, 1.0, 101)
"""The recalls at which precision-recall curves are read, as in COCO."""


def compute_label_ranks(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the number of classes before the label, the most probable first: int64 [N].

    Among equal probabilities, the class with the higher index comes first, as in scikit-learn's
    `top_k_accuracy_score`.

    Args:
      probabilities: float [N, C], all finite.
      labels: int64 [N].
    """
    label_probability = probabilities[np.arange(len(labels)), labels][:, None]
    comes_later = np.arange(probabilities.shape[1])[None, :] > labels[:, None]
    is_before = (probabilities > label_probability) | (
        (probabilities == label_probability) & comes_later
    )
    ranks: np.ndarray = np.count_nonzero(is_before, axis=1)
    return ranks


class Ranking:
    """Ranks the examples of one class against all others by score. One sort serves all figures.

    Args:
      scores: float [N], finite. Equal scores are one threshold.
      is_positive: bool [N].
    """

    def __init__(self, scores: np.ndarray, is_positive: np.ndarray):
        order = np.argsort(-scores, kind="stable")
        ends = np.flatnonzero(np.diff(scores[order], append=np.nan))  # NaN differs from any score
        self._true_positives = np.cumsum(is_positive[order])[ends]
        self._num_predicted = ends + 1
        self._num_positive = int(is_positive.sum())
        self._num_negative = len(is_positive) - self._num_positive

    @property
    def roc_auc(self) -> float | None:
        """The area under the ROC curve. None without positives or without negatives."""
        if not self._num_positive or not self._num_negative:
            return None
        true_positives = np.append(0, self._true_positives)
        false_positives = np.append(0, self._num_predicted - self._true_positives)
        return float(
            np.trapezoid(true_positives / self._num_positive, false_positives / self._num_negative)
        )

    @property
    def average_precision(self) -> float | None:
        """The area under the precision-recall curve, as steps. None without positives."""
        if not self._num_positive:
            return None
        steps = np.diff(self._true_positives, prepend=0) / self._num_positive
        return float(np.sum(steps * (self._true_positives / self._num_predicted)))

    def interpolate_precisions(self) -> np.ndarray | None:
        """Returns the best precision at each of RECALL_THRESHOLDS or above: float [101].

        Returns None without positives.
        """
        if not self._num_positive:
            return None
        recall = self._true_positives / self._num_positive
        precision = self._true_positives / self._num_predicted
        best = np.maximum.accumulate(precision[::-1])[::-1]
        return best[np.searchsorted(recall, RECALL_THRESHOLDS - 1e-12)]


def compute_calibration_bins(
    confidences: np.ndarray, is_right: np.ndarray, num_bins: int = 15
) -> list[CalibrationBin]:
    """Returns equally wide bins from 0 to 1 over the probability of the answer.

    Empty bins are left out.

    Args:
      confidences: float [N], within 0 and 1.
      is_right: bool [N].
    """
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    index = np.searchsorted(edges[1:-1], confidences)
    counts = np.bincount(index, minlength=num_bins)
    sums = np.bincount(index, confidences, num_bins)
    right = np.bincount(index, is_right, num_bins)
    return [
        CalibrationBin(
            low=float(edges[i]),
            high=float(edges[i + 1]),
            count=int(counts[i]),
            confidence=float(sums[i] / counts[i]),
            accuracy=float(right[i] / counts[i]),
        )
        for i in range(num_bins)
        if counts[i]
    ]


def compute_calibration_error(bins: list[CalibrationBin]) -> float:
    """Returns the expected calibration error (Naeini 2015).

    It is the absolute difference between the accuracy and the confidence of a bin, averaged over
    bins by their number of examples.
    """
    total = sum(bin.count for bin in bins)
    errors = sum(bin.count * abs(bin.accuracy - bin.confidence) for bin in bins)
    return errors / total if total else 0.0
