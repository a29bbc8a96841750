"""Boxes of objects: labels and detections, their geometry, and the suppression of repeated ones.

A box is (ymin, xmin, ymax, xmax), as fractions of the image's height and width, so it is valid for
any size of the image.

Legend: B batch, N boxes of an image (padded), K candidates, D detections, C classes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipeline_ops.contract.results import COCO_DETECTIONS, MIN_SCORE

SAME_OBJECT_IOU = 0.5
"""Two detections of a class with a larger overlap are the same object."""


class Boxes(NamedTuple):
    """The labels of a batch.

    Attributes:
      corners: float32 [B, N, 4].
      classes: int32 [B, N], -1 where there is no box.
      is_crowd: bool [B, N], a region with objects that were not annotated one by one. It is not
          learned.
    """

    corners: tf.Tensor
    classes: tf.Tensor
    is_crowd: tf.Tensor

    @property
    def is_learned(self) -> tf.Tensor:
        """Returns whether each box is one to learn, bool [B, N]."""
        return (self.classes >= 0) & ~self.is_crowd

    def to_pixels(self, height: int, width: int) -> tf.Tensor:
        """Returns the corners in pixels, float32 [B, N, 4]."""
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


def select_best(scores: tf.Tensor, limit: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the best scores of [B, K, C], their positions in K and their classes.

    Each is [B, limit], or smaller if there are fewer scores.
    """
    _, num_positions, num_classes = scores.shape
    num_scores = num_positions * num_classes
    flat = tf.reshape(scores, [-1, num_scores])
    best, indices = tf.math.top_k(flat, min(limit, num_scores))
    return best, indices // num_classes, indices % num_classes


def suppress(
    boxes: tf.Tensor,
    scores: tf.Tensor,
    classes: tf.Tensor,
    num_classes: int,
    limit: int = COCO_DETECTIONS,
    nms_iou: float = SAME_OBJECT_IOU,
) -> Detections:
    """Suppresses a candidate that overlaps a better one of its class by more than `nms_iou`.

    Boxes are clipped to the image. The detections of an image are padded to `limit`.
    """
    by_class = scores[..., None] * tf.one_hot(classes, num_classes)
    found = tf.image.combined_non_max_suppression(
        boxes[:, :, None, :],
        by_class,
        max_output_size_per_class=limit,
        max_total_size=limit,
        iou_threshold=nms_iou,
        score_threshold=MIN_SCORE,
    )
    return Detections(
        found.nmsed_boxes,
        found.nmsed_scores,
        tf.cast(found.nmsed_classes, tf.int64),
        found.valid_detections,
    )


def suppress_portably(
    boxes: tf.Tensor,
    scores: tf.Tensor,
    classes: tf.Tensor,
    limit: int = COCO_DETECTIONS,
    nms_iou: float = SAME_OBJECT_IOU,
) -> Detections:
    """Does the same as `suppress`, with operations that TFLite and ONNX have, too.

    It compares all boxes with all others. TensorFlow's own operation stops early.

    A kept box suppresses worse boxes that overlap it. The loop starts with all boxes. Each round
    keeps the boxes that are not suppressed by a box kept in the last round, until nothing changes.
    After n rounds the n best boxes are final, and nearly always all of them.
    """
    intersections, unions = compute_overlaps(boxes[:, :, None, :], boxes[:, None, :, :])
    # Without a division, which an area of 0 would break.
    overlap = intersections > nms_iou * unions
    num_boxes = boxes.shape[1]
    # [i, j]: whether j comes before i.
    comes_before = tf.constant(np.tril(np.ones((num_boxes, num_boxes), bool), -1))
    one, other = scores[:, :, None], scores[:, None, :]
    is_better = (other > one) | (tf.equal(other, one) & comes_before)
    is_same_class = tf.equal(classes[:, :, None], classes[:, None, :])
    suppresses = tf.cast(overlap & is_same_class & is_better, tf.float32)
    is_candidate = tf.cast(scores > MIN_SCORE, tf.float32)
    kept, _ = tf.while_loop(
        lambda kept, before: tf.reduce_any(tf.not_equal(kept, before)),
        lambda kept, _: (
            is_candidate * tf.cast(tf.linalg.matvec(suppresses, kept) < 0.5, tf.float32),
            kept,
        ),
        [is_candidate, tf.zeros_like(is_candidate) - 1.0],
    )
    best, indices = tf.math.top_k(scores * kept, min(limit, num_boxes))
    missing = limit - best.shape[1]
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


def compute_areas(corners: tf.Tensor) -> tf.Tensor:
    return tf.reduce_prod(corners[..., 2:] - corners[..., :2], axis=-1)


def compute_intersections(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns the areas of the intersections of boxes [..., 4]. The shapes are broadcast."""
    low = tf.maximum(one[..., :2], other[..., :2])
    high = tf.minimum(one[..., 2:], other[..., 2:])
    return tf.reduce_prod(tf.maximum(high - low, 0.0), axis=-1)


def compute_overlaps(one: tf.Tensor, other: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the areas of intersection and union of boxes [..., 4]. The shapes are broadcast."""
    intersections = compute_intersections(one, other)
    return intersections, compute_areas(one) + compute_areas(other) - intersections


def compute_pairwise_ious(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns float32 [..., P, Q] of boxes [..., P, 4] and [..., Q, 4]; 0 where both are empty."""
    return tf.math.divide_no_nan(*compute_overlaps(one[..., :, None, :], other[..., None, :, :]))
