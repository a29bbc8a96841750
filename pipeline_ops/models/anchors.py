"""Anchors: the boxes that a RetinaNet starts from, their matches with objects, and encoded boxes.

Follows Lin, Goyal, Girshick, He and Dollár, "Focal Loss for Dense Object Detection" (2017), section
4, with the details of the authors' own program, Detectron. A box here is (ymin, xmin, ymax, xmax)
in pixels of the image that the network sees.

Legend: A anchors of an image, N boxes of an image (padded).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipeline_ops.models.boxes import (
    compute_areas,
    compute_pairwise_intersections,
    compute_pairwise_ious,
)

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


def compute_grid_shapes(image_size: tuple[int, int]) -> list[tuple[int, int]]:
    """Returns the rows and columns of each level, for an image of this height and width."""
    return [
        (math.ceil(image_size[0] / 2**level), math.ceil(image_size[1] / 2**level))
        for level in LEVELS
    ]


def make_anchors(image_size: tuple[int, int], scale: float) -> np.ndarray:
    """Returns float32 [A, 4] in pixels: level by level, row by row, cell by cell.

    Within a cell, anchors are ordered by scale and then by ratio. An anchor of level l has the area
    (scale * 2**l * s)**2 for each s of SCALES. Its centre is that of its cell. It may reach out of
    the image.

    Args:
      image_size: height and width in pixels.
      scale: the side of a level's smallest square anchor, in cells. The paper's value is 4, which
          makes 32 to 813 pixels in all.
    """
    return np.concatenate(
        [
            _make_level_anchors(level, *shape, scale)
            for level, shape in zip(LEVELS, compute_grid_shapes(image_size), strict=True)
        ]
    )


def _make_level_anchors(level: int, rows: int, columns: int, scale: float) -> np.ndarray:
    stride = 2**level
    sides = np.array(
        [
            (scale * stride * s * math.sqrt(ratio), scale * stride * s / math.sqrt(ratio))
            for s in SCALES
            for ratio in RATIOS
        ]
    )
    y, x = ((np.arange(count) + 0.5) * stride for count in (rows, columns))
    centers = np.stack(np.meshgrid(y, x, indexing="ij"), axis=-1)[:, :, None, :]
    corners = np.concatenate([centers - sides / 2, centers + sides / 2], axis=-1)
    return corners.reshape(-1, 4).astype(np.float32)


class Matches(NamedTuple):
    """The match of each anchor of an image.

    An anchor that is neither an object nor ignored is background.

    Attributes:
      box: int32 [A], the number of the box that the anchor overlaps most, the first of equals. It
          counts where `is_object` is true.
      is_object: bool [A].
      is_ignored: bool [A], neither an object nor background.
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
      anchors: float32 [A, 4].
      corners: float32 [N, 4], N at least 1.
      is_learned: bool [N], false for padding and crowds.
      is_crowd: bool [N].
    """
    ious = tf.where(is_learned[None, :], compute_pairwise_ious(anchors, corners), 0.0)
    best_iou = tf.reduce_max(ious, axis=1)
    best_iou_per_box = tf.reduce_max(ious, axis=0, keepdims=True)
    is_best = tf.reduce_any((ious == best_iou_per_box) & (best_iou_per_box > 0), axis=1)
    is_object = (best_iou >= _IS_OBJECT_IOU) | is_best
    is_unclear = (best_iou >= _IS_BACKGROUND_IOU) | _is_in_crowd(anchors, corners, is_crowd)
    return Matches(
        tf.argmax(ious, axis=1, output_type=tf.int32), is_object, ~is_object & is_unclear
    )


def _is_in_crowd(anchors: tf.Tensor, corners: tf.Tensor, is_crowd: tf.Tensor) -> tf.Tensor:
    common = compute_pairwise_intersections(anchors, corners)
    inside = common / compute_areas(anchors)[:, None]
    return tf.reduce_any((inside >= _MIN_CROWD_FRACTION) & is_crowd[None, :], axis=1)


def encode_boxes(corners: tf.Tensor, anchors: tf.Tensor) -> tf.Tensor:
    """Returns float32 [..., A, 4]: boxes in the encoding of the network's outputs.

    (dy, dx) of the centre are in units of the anchor's height and width. (dh, dw) are the
    logarithms of the box's size relative to the anchor's (Girshick et al. 2014, appendix C).
    """
    (centers, sizes), (from_centers, from_sizes) = (
        _to_centers_and_sizes(corners),
        _to_centers_and_sizes(anchors),
    )
    return tf.concat(
        [
            (centers - from_centers) / from_sizes,
            tf.math.log(tf.maximum(sizes, _MIN_SIDE) / from_sizes),
        ],
        axis=-1,
    )


def decode_boxes(deltas: tf.Tensor, anchors: tf.Tensor) -> tf.Tensor:
    """Returns float32 [..., A, 4]: the inverse of `encode_boxes`, in pixels."""
    from_centers, from_sizes = _to_centers_and_sizes(anchors)
    centers = from_centers + deltas[..., :2] * from_sizes
    halves = tf.exp(tf.minimum(deltas[..., 2:], _MAX_LOG_SCALE)) * from_sizes / 2
    return tf.concat([centers - halves, centers + halves], axis=-1)


def _to_centers_and_sizes(corners: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    low, high = corners[..., :2], corners[..., 2:]
    return (low + high) / 2, high - low
