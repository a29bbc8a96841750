"""COCO's metrics of a validation, from counts that add up over batches and workers.

COCO's precision needs all detections of a split, sorted by score. Counts by class and range of
scores approximate it. A recall needs no order. `evaluation/coco.py` is exact, and its loop over
images and classes in NumPy takes ten times as long.

Legend: B batch, N boxes of an image (padded), D detections, C classes, R ranges of scores, T
overlaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipeline_ops.contract.results import COCO_DETECTIONS
from pipeline_ops.models.boxes import (
    Boxes,
    Detections,
    compute_areas,
    compute_intersections,
    compute_pairwise_ious,
)
from pipeline_ops.precision_recall import read_precisions

_NUM_RANGES = 200
"""The number of equal ranges of scores, from 0 to 1."""


class _Metric(NamedTuple):
    """One of COCO's metrics.

    A precision if `limit` is None, otherwise the recall with up to `limit` detections of a class in
    an image. Boxes with an area in pixels outside of `areas` are ignored.
    """

    overlaps: tuple[float, ...] = tuple(np.linspace(0.5, 0.95, 10).tolist())
    areas: tuple[float, float] = (0.0, 1e10)
    limit: int | None = None


_AREAS = {"small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
_METRICS = {
    **{"map": _Metric(), "map_50": _Metric((0.5,)), "map_75": _Metric((0.75,))},
    **{f"map_{size}": _Metric(areas=areas) for size, areas in _AREAS.items()},
    **{f"mar_{limit}": _Metric(limit=limit) for limit in (1, 10, COCO_DETECTIONS)},
    **{
        f"mar_{size}": _Metric(areas=areas, limit=COCO_DETECTIONS) for size, areas in _AREAS.items()
    },
}


def get_num_columns(name: str) -> int:
    """Returns the number of counts of each class for a metric."""
    metric = _METRICS[name]
    return 2 if metric.limit else len(metric.overlaps) * 2 * _NUM_RANGES + 1


def count_detections(
    name: str,
    found: Detections,
    labels: Boxes,
    num_classes: int,
    num_pixels: int,
    num_counted: int = COCO_DETECTIONS,
) -> tf.Tensor:
    """Counts right and wrong detections of a batch, and true boxes, for `compute_metric`.

    Args:
      name: one of COCO's metrics.
      num_pixels: the area of an image.
      num_counted: the number of detections of a class in an image, the best ones, that count.

    Returns:
      float32 [C, T * 2 * R + 1]: for each overlap, the right detections by range and the wrong ones
      by range, and at the end the true boxes. For a recall float32 [C, 2]: the right detections,
      added up over all overlaps, and the true boxes.
    """
    metric = _METRICS[name]
    low, high = (limit / num_pixels for limit in metric.areas)
    areas = compute_areas(labels.corners)
    is_true = labels.is_learned & (areas >= low) & (areas <= high)
    areas = compute_areas(found.boxes)
    is_in_range = (areas >= low) & (areas <= high)
    classes = tf.cast(found.classes, tf.int32)
    is_detection = tf.sequence_mask(found.num_detections, tf.shape(classes)[1])
    limit = num_counted if metric.limit in (None, COCO_DETECTIONS) else metric.limit
    if found.classes.shape[1] is None or found.classes.shape[1] > limit:
        is_detection &= _rank(classes) < limit
    ranges = tf.minimum(tf.cast(found.scores * _NUM_RANGES, tf.int32), _NUM_RANGES - 1)

    def count(mask: tf.Tensor, cells: tf.Tensor, size: int) -> tf.Tensor:
        counts = tf.math.unsorted_segment_sum(
            tf.cast(mask, tf.float32), tf.maximum(cells, 0), num_classes * size
        )
        return tf.reshape(counts, [num_classes, size])

    cells = classes * _NUM_RANGES + ranges
    columns = []
    for is_right, is_ignored in _match(found, labels, is_true, metric.overlaps):
        if metric.limit:
            columns.append(count(is_right & is_detection, classes, 1))
        else:
            is_wrong = is_detection & is_in_range & ~is_right & ~is_ignored
            columns += [
                count(each, cells, _NUM_RANGES) for each in (is_right & is_detection, is_wrong)
            ]
    if metric.limit:
        columns = [tf.add_n(columns)]
    return tf.concat([*columns, count(is_true, labels.classes, 1)], axis=1)


def _rank(classes: tf.Tensor) -> tf.Tensor:
    """Returns the number of earlier entries of the same class, int32 [B, D]."""
    is_same = tf.cast(tf.equal(classes[:, :, None], classes[:, None]), tf.int32)
    return tf.reduce_sum(tf.linalg.band_part(is_same, -1, 0), axis=2) - 1


def _match(
    found: Detections, labels: Boxes, is_true: tf.Tensor, overlaps: Sequence[float]
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Matches detections with true boxes of their class, the best score first.

    Each detection takes the free box with the largest overlap. It takes a box outside of `is_true`
    (bool [B, N]) only if no other is free. A crowd stays free.

    Returns, for each overlap, whether each detection is matched with a box in `is_true`, and
    whether with another one and thus ignored, bool [B, D] each.
    """
    ious = tf.where(
        labels.is_crowd[:, None],
        _compute_covered_shares(found.boxes, labels.corners),
        compute_pairwise_ious(found.boxes, labels.corners),
    )
    is_possible = tf.equal(tf.cast(found.classes, tf.int32)[:, :, None], labels.classes[:, None])
    ious = tf.where(is_possible, ious, 0.0)
    num_detections, num_boxes = tf.shape(ious)[1], tf.shape(ious)[2]
    limits_T11 = tf.constant(overlaps)[:, None, None]

    def choose(
        number: tf.Tensor, is_free_TBN: tf.Tensor, is_right: tf.Tensor, is_ignored: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        free_TBN = tf.where(is_free_TBN & (ious[:, number] >= limits_T11), ious[:, number], 0.0)
        # A box that counts comes before all others.
        rated_TBN = tf.where(is_true & (free_TBN > 0), free_TBN + 2.0, free_TBN)
        best_TB = tf.argmax(rated_TBN, axis=-1)
        chosen_TBN = tf.one_hot(best_TB, num_boxes, True, False, dtype=tf.bool) & (free_TBN > 0)
        own = tf.one_hot(number, num_detections, True, False, dtype=tf.bool)
        return (
            number + 1,
            is_free_TBN & ~(chosen_TBN & ~labels.is_crowd),
            is_right | (own & tf.reduce_any(chosen_TBN & is_true, axis=-1, keepdims=True)),
            is_ignored | (own & tf.reduce_any(chosen_TBN & ~is_true, axis=-1, keepdims=True)),
        )

    is_free_TBN = tf.tile(tf.ones_like(labels.is_crowd)[None], [len(overlaps), 1, 1])
    nothing_TBD = tf.tile(tf.zeros_like(found.scores, tf.bool)[None], [len(overlaps), 1, 1])
    end = tf.where(num_boxes > 0, tf.reduce_max(found.num_detections), 0)
    any_size = tf.TensorShape([len(overlaps), None, None])
    _, _, is_right, is_ignored = tf.while_loop(
        lambda number, *_: number < end,
        choose,
        (tf.constant(0), is_free_TBN, nothing_TBD, nothing_TBD),
        (tf.TensorShape([]), any_size, any_size, any_size),
    )
    return list(zip(tf.unstack(is_right), tf.unstack(is_ignored), strict=True))


def _compute_covered_shares(boxes: tf.Tensor, regions: tf.Tensor) -> tf.Tensor:
    """Returns the share of each box [B, D, 4] inside of each region [B, N, 4]: [B, D, N]."""
    covered = compute_intersections(boxes[:, :, None], regions[:, None])
    return tf.math.divide_no_nan(covered, compute_areas(boxes)[:, :, None])


def compute_metric(name: str, counts: np.ndarray) -> float:
    """Returns one of COCO's metrics: the mean over classes with boxes, and 0 without any.

    A precision differs from COCO's because all detections in one range of scores are one point of
    the curve, and because of two boxes with equal overlaps the first is matched, not the last.
    `counts` is the sum of the results of `count_detections`.
    """
    metric, counts = _METRICS[name], np.asarray(counts, np.float64)
    found = []
    for row in counts[counts[:, -1] > 0]:
        if metric.limit:
            found.append(row[0] / row[-1] / len(metric.overlaps))
        else:
            # From the highest range of scores to the lowest.
            by_range = row[:-1].reshape(-1, 2, _NUM_RANGES)[..., ::-1].cumsum(axis=-1)
            curves = [read_precisions(right, right + wrong, row[-1]) for right, wrong in by_range]
            found.append(np.mean([curve.mean() for curve in curves]))
    return float(np.mean(found)) if found else 0.0
