"""What all detectors have in common: boxes as labels, detections as answers, and the suppression of those that mean the same object.

A box is (ymin, xmin, ymax, xmax), as fractions of the image's height and width: it holds for any size that the image is shown in.

Legend: B batch, N boxes of an image (padded), K candidates, D detections.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from pipeline_ops.contracts.figures import LEAST_SCORE

MAX_DETECTIONS = 100
"""Of an image, as COCO's figures count them."""
_SAME_OBJECT_IOU = 0.5


class Boxes(NamedTuple):
    """The labels of a batch. `corners` float32 [B, N, 4]; `classes` int32 [B, N], -1 where there is no box; `is_crowd` bool [B, N]: a region
    with objects that nobody has drawn one by one, where nothing can be learned."""

    corners: tf.Tensor
    classes: tf.Tensor
    is_crowd: tf.Tensor

    @property
    def is_learned(self) -> tf.Tensor:
        """bool [B, N]"""
        return (self.classes >= 0) & ~self.is_crowd

    def in_pixels(self, height: int, width: int) -> tf.Tensor:
        """float32 [B, N, 4]"""
        return self.corners * tf.constant([height, width, height, width], tf.float32)


class Detections(NamedTuple):
    """What a detector answers, the best first. `boxes` float32 [B, D, 4]; `scores` float32 [B, D], 0 to 1; `classes` int64 [B, D];
    `num_detections` int32 [B]: what comes after so many is padding, all 0."""

    boxes: tf.Tensor
    scores: tf.Tensor
    classes: tf.Tensor
    num_detections: tf.Tensor


def suppress(boxes: tf.Tensor, scores: tf.Tensor, classes: tf.Tensor, num_classes: int) -> Detections:
    """Of boxes of one class that overlap by more than half, the best one stays.

    Args:
      boxes: float32 [B, K, 4]; what lies outside of the image is cut off.
      scores: float32 [B, K].
      classes: int32 [B, K].
      num_classes: of the data set.
    """
    by_class = scores[..., None] * tf.one_hot(classes, num_classes)
    found = tf.image.combined_non_max_suppression(
        boxes[:, :, None, :], by_class, max_output_size_per_class=MAX_DETECTIONS, max_total_size=MAX_DETECTIONS,
        iou_threshold=_SAME_OBJECT_IOU, score_threshold=LEAST_SCORE)
    return Detections(found.nmsed_boxes, found.nmsed_scores, tf.cast(found.nmsed_classes, tf.int64), found.valid_detections)


def pairwise_ious(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """float32 [..., P, Q] of boxes [..., P, 4] and [..., Q, 4]; 0 where both are empty."""
    low, high = tf.maximum(one[..., :, None, :2], other[..., None, :, :2]), tf.minimum(one[..., :, None, 2:], other[..., None, :, 2:])
    inter = tf.reduce_prod(tf.maximum(high - low, 0.0), axis=-1)
    area, other_area = (tf.reduce_prod(each[..., 2:] - each[..., :2], axis=-1) for each in (one, other))
    return tf.math.divide_no_nan(inter, area[..., :, None] + other_area[..., None, :] - inter)
