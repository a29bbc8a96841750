"""The head of `retinanet`: losses against given boxes, and decoding of the outputs into detections.

The loss has two parts: focal loss on the classes of all anchors, and smooth L1 or generalised IoU
on the boxes of the anchors that stand for an object. Both are divided by the number of these
anchors (Lin et al. 2017, section 4.1), which is the last of the sums. The division follows after
all workers have counted theirs.

Every shape except the number of boxes is fixed. With `max_boxes`, that number is fixed, too, and
XLA compiles a step once.

Legend: B batch, A anchors of an image, N boxes of an image (padded), C classes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Literal

import numpy as np
import tensorflow as tf

from pipeline_ops.models.anchors import (
    ANCHORS_PER_CELL,
    Matches,
    compute_grid_shapes,
    decode_boxes,
    encode_boxes,
    make_anchors,
    match_anchors,
)
from pipeline_ops.models.boxes import (
    Boxes,
    compute_areas,
    compute_intersections,
)
from pipeline_ops.models.detection import Head

BoxLoss = Literal["smooth_l1", "giou"]

_ALPHA, _GAMMA = 0.25, 2.0
_BETA = 0.11
"""The error at which smooth L1 turns from a parabola into a line: Detectron's
RETINANET.BBOX_REG_BETA.
"""
_MAX_CANDIDATES = 1000
"""The number of best scores that are kept for each level, and then for all levels together. The
portable suppression compares all of them with all others.
"""
_NUM_PARALLEL_IMAGES = 2
"""The number of images that are matched at once. Each takes some 60 MB of memory at 640x640 pixels
and 100 boxes.
"""


@dataclasses.dataclass(frozen=True)
class AnchorTargets:
    """The targets of the anchors of a batch.

    Attributes:
      classes: int32 [B, A], -1 for background and for ignored anchors.
      corners: float32 [B, A, 4] in pixels.
      is_object: bool [B, A], as in `Matches`.
      is_ignored: bool [B, A], as in `Matches`.
    """

    classes: tf.Tensor
    corners: tf.Tensor
    is_object: tf.Tensor
    is_ignored: tf.Tensor


@dataclasses.dataclass(frozen=True)
class AnchorHead(Head):
    """Computes losses and detections from {"logits": [B, A, C], "deltas": [B, A, 4]}.

    Args:
      image_size: height and width in pixels.
      num_classes: the number of classes in the data set.
      anchor_scale: the scale of `anchors.make_anchors`.
      box_loss: `smooth_l1` of the result of `anchors.encode_boxes`, summed over the four values, or
          `giou`: 1 - GIoU (Rezatofighi et al. 2019).
      max_boxes: the number of boxes to which each image of every batch is padded. None pads to the
          number of the image with the most boxes.
    """

    image_size: tuple[int, int]
    num_classes: int
    anchor_scale: float = 4.0
    box_loss: BoxLoss = "smooth_l1"
    max_boxes: int | None = None
    metrics = ("class_loss", "box_iou")

    @functools.cached_property
    def anchors(self) -> np.ndarray:
        """float32 [A, 4] in pixels."""
        return make_anchors(self.image_size, self.anchor_scale)

    def compute_sums(self, outputs: dict[str, tf.Tensor], labels: Boxes) -> tf.Tensor:
        """Returns float32 [4]: the sums of the loss, of the classes' part of it and of the IoU of
        the boxes with their objects, and the number of anchors that stand for an object.
        """
        targets = self.build_targets(labels)
        logits, deltas = (tf.cast(outputs[name], tf.float32) for name in ("logits", "deltas"))
        class_losses = _compute_focal_losses(
            logits, tf.one_hot(targets.classes, self.num_classes, on_value=True, off_value=False)
        )
        class_loss = tf.reduce_sum(
            tf.where(targets.is_ignored, 0.0, tf.reduce_sum(class_losses, axis=-1))
        )
        corners = decode_boxes(deltas, self.anchors)
        ious, gious = _compute_ious(corners, targets.corners)
        box_losses = (
            1 - gious
            if self.box_loss == "giou"
            else _compute_smooth_l1(deltas - encode_boxes(targets.corners, self.anchors))
        )
        loss, iou = (
            tf.reduce_sum(tf.where(targets.is_object, values, 0.0)) for values in (box_losses, ious)
        )
        return tf.stack(
            [
                class_loss + loss,
                class_loss,
                iou,
                tf.reduce_sum(tf.cast(targets.is_object, tf.float32)),
            ]
        )

    def build_targets(self, labels: Boxes) -> AnchorTargets:
        """Returns the targets of all anchors.

        Matches a few images at a time, so that they can use the same memory one after another.
        """
        padded = tf.pad(
            labels.to_pixels(*self.image_size), [[0, 0], [0, 1], [0, 0]]
        )  # a padding box: an image without boxes has one, too
        learned, crowd = (
            tf.pad(flags, [[0, 0], [0, 1]])
            for flags in (labels.is_learned, labels.is_crowd & (labels.classes >= 0))
        )
        matches = tf.map_fn(
            lambda each: match_anchors(tf.constant(self.anchors), *each),
            (padded, learned, crowd),
            parallel_iterations=_NUM_PARALLEL_IMAGES,
            fn_output_signature=Matches(tf.int32, tf.bool, tf.bool),
        )
        box, is_object, is_ignored = (
            tf.ensure_shape(each, [None, len(self.anchors)]) for each in matches
        )
        classes = tf.gather(
            tf.pad(labels.classes, [[0, 0], [0, 1]], constant_values=-1), box, batch_dims=1
        )
        return AnchorTargets(
            tf.where(is_object, classes, -1),
            tf.gather(padded, box, batch_dims=1),
            is_object,
            is_ignored,
        )

    def find_candidates(
        self, outputs: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the best candidates of all levels."""
        scores = tf.sigmoid(tf.cast(outputs["logits"], tf.float32))
        sizes = [rows * columns for rows, columns in compute_grid_shapes(self.image_size)]
        ends = [ANCHORS_PER_CELL * cells for cells in itertools.accumulate(sizes, initial=0)]
        levels = [
            self._select_best(scores[:, start:end], start)
            for start, end in itertools.pairwise(ends)
        ]
        best, anchors, classes = (tf.concat(parts, axis=1) for parts in zip(*levels, strict=True))
        best, indices = tf.math.top_k(best, min(_MAX_CANDIDATES, best.shape[1]))
        anchors, classes = (tf.gather(each, indices, batch_dims=1) for each in (anchors, classes))
        deltas = tf.gather(tf.cast(outputs["deltas"], tf.float32), anchors, batch_dims=1)
        corners = decode_boxes(deltas, tf.gather(tf.constant(self.anchors), anchors))
        height, width = self.image_size
        return corners / tf.constant([height, width, height, width], tf.float32), best, classes

    def _select_best(self, scores: tf.Tensor, start: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns scores, numbers of the anchors and classes, [B, K] each, of one level.

        Args:
          scores: [B, A of the level, C].
          start: the number of the level's first anchor.
        """
        num_scores = scores.shape[1] * self.num_classes
        best, indices = tf.math.top_k(
            tf.reshape(scores, [-1, num_scores]), min(_MAX_CANDIDATES, num_scores)
        )
        return best, start + indices // self.num_classes, indices % self.num_classes


def _compute_focal_losses(logits: tf.Tensor, is_class: tf.Tensor) -> tf.Tensor:
    """Returns the focal loss of each anchor and class: Lin et al. 2017, equation 5."""
    probability = tf.sigmoid(logits)
    positive_losses = _ALPHA * (1 - probability) ** _GAMMA * tf.math.softplus(-logits)
    negative_losses = (1 - _ALPHA) * probability**_GAMMA * tf.math.softplus(logits)
    return tf.where(is_class, positive_losses, negative_losses)


def _compute_smooth_l1(errors: tf.Tensor) -> tf.Tensor:
    """Returns the smooth L1 loss (Girshick 2015, equation 3, turn at _BETA), summed over the last
    axis.
    """
    sizes = tf.abs(errors)
    return tf.reduce_sum(
        tf.where(sizes < _BETA, sizes**2 / (2 * _BETA), sizes - _BETA / 2), axis=-1
    )


def _compute_ious(corners: tf.Tensor, others: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns IoU and generalised IoU of boxes, one by one."""
    low = tf.minimum(corners[..., :2], others[..., :2])
    high = tf.maximum(corners[..., 2:], others[..., 2:])
    hull = tf.reduce_prod(high - low, axis=-1)
    inter = compute_intersections(corners, others)
    union = compute_areas(corners) + compute_areas(others) - inter
    iou = tf.math.divide_no_nan(inter, union)
    return iou, iou - tf.math.divide_no_nan(hull - union, hull)
