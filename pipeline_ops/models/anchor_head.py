"""The head of `retinanet`: anchors, their matches with objects, losses, and decoding of detections.

Follows Lin, Goyal, Girshick, He and Dollár, "Focal Loss for Dense Object Detection" (2017), section
4, with the details of the authors' own program, Detectron. Anchors are the boxes that a RetinaNet
starts from. The loss has two parts: focal loss on the classes of all anchors, and smooth L1 or
generalised IoU on the boxes of the anchors that stand for an object. Both are divided by the number
of these anchors, which is the last of the sums. The division follows after all workers have counted
theirs.

Every shape except the number of boxes is fixed. With `max_boxes`, that number is fixed, too, and
XLA compiles a step once.

A box is (ymin, xmin, ymax, xmax) in pixels of the image that the network sees.

Legend: B batch, A anchors of an image, N boxes of an image (padded), C classes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Literal, NamedTuple

import numpy as np
import tensorflow as tf

from pipeline_ops.models.detection import (
    Boxes,
    Candidates,
    Head,
    compute_areas,
    compute_focal_losses,
    compute_intersections,
    compute_overlaps,
    compute_pairwise_ious,
    select_best,
)

BoxLoss = Literal["smooth_l1", "giou"]

LEVELS = range(3, 8)
"""The levels of the pyramid. Level l has a cell for every 2**l pixels."""
SCALES = (2**0, 2 ** (1 / 3), 2 ** (2 / 3))
RATIOS = (0.5, 1.0, 2.0)
"""Height by width."""
ANCHORS_PER_CELL = len(SCALES) * len(RATIOS)

_IS_OBJECT_IOU, _IS_BACKGROUND_IOU = 0.5, 0.4
_MIN_CROWD_FRACTION = 0.7
"""The share of an anchor's area in a crowd from which on the anchor is ignored: Detectron's
TRAIN.CROWD_FILTER_THRESH.
"""
_MAX_LOG_SCALE = math.log(1000 / 16)
"""The largest logarithm of a box's size relative to its anchor: Detectron's BBOX_XFORM_CLIP. Keeps
`exp` finite.
"""
_MIN_SIDE = 1e-3
_ALPHA = 0.25
"""The weight of the focal loss of objects. That of background is 1 - _ALPHA."""
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
      is_object, is_ignored: bool [B, A], as in `Matches`.
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
      anchor_scale: the scale of `make_anchors`.
      box_loss: `smooth_l1` of the result of `encode_boxes`, summed over the four values, or `giou`:
          1 - GIoU (Rezatofighi et al. 2019).
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
        is_class = tf.one_hot(targets.classes, self.num_classes, on_value=True, off_value=False)
        class_losses = tf.reduce_sum(
            compute_focal_losses(logits, is_class, _ALPHA, 1 - _ALPHA), axis=-1
        )
        class_loss = tf.reduce_sum(tf.where(targets.is_ignored, 0.0, class_losses))
        ious, gious = _compute_ious(decode_boxes(deltas, self.anchors), targets.corners)
        if self.box_loss == "giou":
            box_losses = 1 - gious
        else:
            errors = deltas - encode_boxes(targets.corners, self.anchors)
            box_losses = _compute_smooth_l1(errors)
        box_loss = tf.reduce_sum(tf.where(targets.is_object, box_losses, 0.0))
        iou = tf.reduce_sum(tf.where(targets.is_object, ious, 0.0))
        count = tf.reduce_sum(tf.cast(targets.is_object, tf.float32))
        return tf.stack([class_loss + box_loss, class_loss, iou, count])

    def build_targets(self, labels: Boxes) -> AnchorTargets:
        """Returns the targets of all anchors.

        Matches a few images at a time, so that they can use the same memory one after another.
        """
        # Each image gets a padding box, so that an image without boxes has one, too.
        one_more = [[0, 0], [0, 1]]
        corners = tf.pad(labels.to_pixels(*self.image_size), [*one_more, [0, 0]])
        classes = tf.pad(labels.classes, one_more, constant_values=-1)
        is_learned = tf.pad(labels.is_learned, one_more)
        is_crowd = tf.pad(labels.is_crowd, one_more) & (classes >= 0)
        matches = tf.map_fn(
            lambda each: match_anchors(tf.constant(self.anchors), *each),
            (corners, is_learned, is_crowd),
            parallel_iterations=_NUM_PARALLEL_IMAGES,
            fn_output_signature=Matches(tf.int32, tf.bool, tf.bool),
        )
        box, is_object, is_ignored = (
            tf.ensure_shape(each, [None, len(self.anchors)]) for each in matches
        )
        return AnchorTargets(
            tf.where(is_object, tf.gather(classes, box, batch_dims=1), -1),
            tf.gather(corners, box, batch_dims=1),
            is_object,
            is_ignored,
        )

    def find_candidates(self, outputs: dict[str, tf.Tensor]) -> Candidates:
        """Returns the best candidates of all levels."""
        scores = tf.sigmoid(tf.cast(outputs["logits"], tf.float32))
        sizes = [rows * columns for rows, columns in compute_grid_shapes(self.image_size)]
        ends = [ANCHORS_PER_CELL * cells for cells in itertools.accumulate(sizes, initial=0)]
        levels = []
        for start, end in itertools.pairwise(ends):
            best, positions, classes = select_best(scores[:, start:end], _MAX_CANDIDATES)
            levels.append((best, start + positions, classes))
        best, anchors, classes = (tf.concat(parts, axis=1) for parts in zip(*levels, strict=True))
        best, indices = tf.math.top_k(best, min(_MAX_CANDIDATES, best.shape[1]))
        anchors, classes = (tf.gather(each, indices, batch_dims=1) for each in (anchors, classes))
        deltas = tf.gather(tf.cast(outputs["deltas"], tf.float32), anchors, batch_dims=1)
        corners = decode_boxes(deltas, tf.gather(tf.constant(self.anchors), anchors))
        height, width = self.image_size
        return corners / tf.constant([height, width, height, width], tf.float32), best, classes


def compute_grid_shapes(image_size: tuple[int, int]) -> list[tuple[int, int]]:
    """Returns the rows and columns of each level, for an image of this height and width."""
    height, width = image_size
    return [(math.ceil(height / 2**level), math.ceil(width / 2**level)) for level in LEVELS]


def make_anchors(image_size: tuple[int, int], scale: float) -> np.ndarray:
    """Returns float32 [A, 4] in pixels: level by level, row by row, cell by cell.

    Within a cell, anchors are ordered by scale and then by ratio. An anchor of level l has the area
    (scale * 2**l * s)**2 for each s of SCALES. Its centre is that of its cell. It may reach out of
    the image. `scale` is the side of a level's smallest square anchor, in cells. The paper's value
    is 4, which makes 32 to 813 pixels in all.
    """
    levels = []
    for level, shape in zip(LEVELS, compute_grid_shapes(image_size), strict=True):
        stride = 2**level
        sizes = [(scale * stride * s, math.sqrt(ratio)) for s in SCALES for ratio in RATIOS]
        sides = np.array([(size * root, size / root) for size, root in sizes])
        y, x = ((np.arange(count) + 0.5) * stride for count in shape)
        centers = np.stack(np.meshgrid(y, x, indexing="ij"), axis=-1)[:, :, None, :]
        corners = np.concatenate([centers - sides / 2, centers + sides / 2], axis=-1)
        levels.append(corners.reshape(-1, 4).astype(np.float32))
    return np.concatenate(levels)


class Matches(NamedTuple):
    """The match of each anchor of an image.

    An anchor that is neither an object nor ignored is background.

    Attributes:
      box: int32 [A], the number of the box that the anchor overlaps most, the first of equals. It
          counts where `is_object` is true.
      is_object, is_ignored: bool [A].
    """

    box: tf.Tensor
    is_object: tf.Tensor
    is_ignored: tf.Tensor


def match_anchors(
    anchors: tf.Tensor, corners: tf.Tensor, is_learned: tf.Tensor, is_crowd: tf.Tensor
) -> Matches:
    """Matches anchors to the boxes of one image.

    An anchor stands for an object from an IoU of 0.5 on, and for background below 0.4. The anchors
    that overlap an object most, all of equals, stand for an object at any overlap ("low-quality
    matches", Ren et al. 2015, section 3.1.2). This object is the one that the anchor itself
    overlaps most, as in Detectron. A crowd is not an object, and anchors inside a crowd are not
    background.

    Args:
      anchors, corners: float32 [A, 4] and [N, 4], N at least 1.
      is_learned, is_crowd: bool [N]. A padding box is neither.
    """
    ious = tf.where(is_learned[None, :], compute_pairwise_ious(anchors, corners), 0.0)
    best_iou = tf.reduce_max(ious, axis=1)
    best_iou_per_box = tf.reduce_max(ious, axis=0, keepdims=True)
    is_best = tf.reduce_any((ious == best_iou_per_box) & (best_iou_per_box > 0), axis=1)
    is_object = (best_iou >= _IS_OBJECT_IOU) | is_best
    common = compute_intersections(anchors[:, None, :], corners[None, :, :])
    is_inside = common / compute_areas(anchors)[:, None] >= _MIN_CROWD_FRACTION
    is_in_crowd = tf.reduce_any(is_inside & is_crowd[None, :], axis=1)
    is_ignored = ~is_object & ((best_iou >= _IS_BACKGROUND_IOU) | is_in_crowd)
    return Matches(tf.argmax(ious, axis=1, output_type=tf.int32), is_object, is_ignored)


def encode_boxes(corners: tf.Tensor, anchors: tf.Tensor) -> tf.Tensor:
    """Returns float32 [..., A, 4]: boxes in the encoding of the network's outputs.

    (dy, dx) of the centre are in units of the anchor's height and width. (dh, dw) are the
    logarithms of the box's size relative to the anchor's (Girshick et al. 2014, appendix C).
    """
    centers, sizes = _to_centers_and_sizes(corners)
    from_centers, from_sizes = _to_centers_and_sizes(anchors)
    shifts = (centers - from_centers) / from_sizes
    return tf.concat([shifts, tf.math.log(tf.maximum(sizes, _MIN_SIDE) / from_sizes)], axis=-1)


def decode_boxes(deltas: tf.Tensor, anchors: tf.Tensor) -> tf.Tensor:
    """Returns float32 [..., A, 4]: the inverse of `encode_boxes`, in pixels."""
    from_centers, from_sizes = _to_centers_and_sizes(anchors)
    centers = from_centers + deltas[..., :2] * from_sizes
    halves = tf.exp(tf.minimum(deltas[..., 2:], _MAX_LOG_SCALE)) * from_sizes / 2
    return tf.concat([centers - halves, centers + halves], axis=-1)


def _to_centers_and_sizes(corners: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    low, high = corners[..., :2], corners[..., 2:]
    return (low + high) / 2, high - low


def _compute_smooth_l1(errors: tf.Tensor) -> tf.Tensor:
    """Returns the smooth L1 loss (Girshick 2015, equation 3), summed over the last axis."""
    sizes = tf.abs(errors)
    losses = tf.where(sizes < _BETA, sizes**2 / (2 * _BETA), sizes - _BETA / 2)
    return tf.reduce_sum(losses, axis=-1)


def _compute_ious(corners: tf.Tensor, others: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns IoU and generalised IoU of boxes, one by one."""
    low = tf.minimum(corners[..., :2], others[..., :2])
    high = tf.maximum(corners[..., 2:], others[..., 2:])
    hull = tf.reduce_prod(high - low, axis=-1)
    intersection, union = compute_overlaps(corners, others)
    iou = tf.math.divide_no_nan(intersection, union)
    return iou, iou - tf.math.divide_no_nan(hull - union, hull)
