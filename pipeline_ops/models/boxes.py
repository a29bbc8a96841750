"""Common parts of all detectors: boxes as labels, detections, and the suppression of duplicates.

A box is (ymin, xmin, ymax, xmax), as fractions of the image's height and width. It holds for any
size of the image.

Legend: B batch, N boxes of an image (padded), K candidates, D detections.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipeline_ops.artifacts.results import MIN_SCORE

MAX_DETECTIONS = 100
"""The largest number of detections of an image, as COCO's figures count them."""
_SAME_OBJECT_IOU = 0.5


class Boxes(NamedTuple):
    """The labels of a batch.

    Attributes:
      corners: float32 [B, N, 4].
      classes: int32 [B, N], -1 where there is no box.
      is_crowd: bool [B, N], a region with objects that were not annotated one by one, where nothing
          can be learned.
    """

    corners: tf.Tensor
    classes: tf.Tensor
    is_crowd: tf.Tensor

    @property
    def is_learned(self) -> tf.Tensor:
        """bool [B, N]"""
        return (self.classes >= 0) & ~self.is_crowd

    def to_pixels(self, height: int, width: int) -> tf.Tensor:
        """float32 [B, N, 4]"""
        return self.corners * tf.constant([height, width, height, width], tf.float32)


class Detections(NamedTuple):
    """The output of a detector, the best detection first.

    Attributes:
      boxes: float32 [B, D, 4].
      scores: float32 [B, D], 0 to 1.
      classes: int64 [B, D].
      num_detections: int32 [B]. Entries after this number are padding, all 0.
    """

    boxes: tf.Tensor
    scores: tf.Tensor
    classes: tf.Tensor
    num_detections: tf.Tensor


def suppress(
    boxes: tf.Tensor, scores: tf.Tensor, classes: tf.Tensor, num_classes: int
) -> Detections:
    """Keeps the best one of the boxes of one class that overlap by more than half.

    Args:
      boxes: float32 [B, K, 4]. Parts outside of the image are cut off.
      scores: float32 [B, K].
      classes: int32 [B, K].
      num_classes: the number of classes in the data set.
    """
    by_class = scores[..., None] * tf.one_hot(classes, num_classes)
    found = tf.image.combined_non_max_suppression(
        boxes[:, :, None, :],
        by_class,
        max_output_size_per_class=MAX_DETECTIONS,
        max_total_size=MAX_DETECTIONS,
        iou_threshold=_SAME_OBJECT_IOU,
        score_threshold=MIN_SCORE,
    )
    return Detections(
        found.nmsed_boxes,
        found.nmsed_scores,
        tf.cast(found.nmsed_classes, tf.int64),
        found.valid_detections,
    )


def suppress_portably(boxes: tf.Tensor, scores: tf.Tensor, classes: tf.Tensor) -> Detections:
    """Does the same as `suppress`, with operations that TFLite and ONNX have, too.

    It compares all boxes with all others, where TensorFlow's own operation stops early.

    A box is suppressed if a better box that is kept overlaps it. The loop starts with all boxes.
    Each round keeps the boxes that no box kept in the round before suppresses, until nothing
    changes. After n rounds the n best boxes are settled, and nearly always all of them.
    """
    inter, area = compute_pairwise_intersections(boxes, boxes), compute_areas(boxes)
    overlap = inter > _SAME_OBJECT_IOU * (
        area[:, :, None] + area[:, None, :] - inter
    )  # without a division, which an area of 0 would break
    comes_before = tf.constant(
        np.tril(np.ones((boxes.shape[1], boxes.shape[1]), bool), -1)
    )  # [K, K]: the second before the first
    one, other = scores[:, :, None], scores[:, None, :]
    is_better = (other > one) | (tf.equal(other, one) & comes_before)
    suppresses = tf.cast(
        overlap & tf.equal(classes[:, :, None], classes[:, None, :]) & is_better, tf.float32
    )
    counts = tf.cast(scores > MIN_SCORE, tf.float32)
    kept, _ = tf.while_loop(
        lambda kept, before: tf.reduce_any(tf.not_equal(kept, before)),
        lambda kept, _: (
            counts * tf.cast(tf.linalg.matvec(suppresses, kept) < 0.5, tf.float32),
            kept,
        ),
        [counts, tf.zeros_like(counts) - 1.0],
    )
    best, indices = tf.math.top_k(scores * kept, min(MAX_DETECTIONS, boxes.shape[1]))
    missing = MAX_DETECTIONS - best.shape[1]
    found = tf.cast(best > 0, tf.float32)
    best_boxes = tf.clip_by_value(tf.gather(boxes, indices, batch_dims=1), 0.0, 1.0)
    best_classes = tf.cast(tf.gather(classes, indices, batch_dims=1), tf.int64)
    padding = [[0, 0], [0, missing]]
    return Detections(
        tf.pad(best_boxes * found[..., None], [*padding, [0, 0]]),
        tf.pad(best, padding),
        tf.pad(best_classes * tf.cast(found, tf.int64), padding),
        tf.cast(tf.reduce_sum(found, axis=-1), tf.int32),
    )


def compute_pairwise_ious(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns float32 [..., P, Q] of boxes [..., P, 4] and [..., Q, 4]; 0 where both are empty."""
    inter = compute_pairwise_intersections(one, other)
    union = compute_areas(one)[..., :, None] + compute_areas(other)[..., None, :] - inter
    return tf.math.divide_no_nan(inter, union)


def compute_pairwise_intersections(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns areas, float32 [..., P, Q]."""
    return compute_intersections(one[..., :, None, :], other[..., None, :, :])


def compute_intersections(corners: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Returns the areas that boxes have in common, one by one."""
    low = tf.maximum(corners[..., :2], others[..., :2])
    high = tf.minimum(corners[..., 2:], others[..., 2:])
    return tf.reduce_prod(tf.maximum(high - low, 0.0), axis=-1)


def compute_areas(corners: tf.Tensor) -> tf.Tensor:
    return tf.reduce_prod(corners[..., 2:] - corners[..., :2], axis=-1)
