"""The head of a detector with anchors: targets, losses, and boxes for outputs.

The loss has two parts: focal loss on the classes of all anchors, and smooth L1 or generalised IoU
on the boxes of the anchors that stand for an object. Both are divided by the number of these
anchors in the global batch, the last of the sums. Every shape except the number of boxes is fixed.
`max_boxes` fixes that number as well, so that XLA compiles a step only once.

A box is (ymin, xmin, ymax, xmax) in pixels of the image that the network sees.

Legend: B batch, A anchors of an image, N boxes of an image (padded), C classes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import tensorflow as tf

from pipeline_ops.contract.results import COCO_DETECTIONS
from pipeline_ops.models.boxes import (
    SAME_OBJECT_IOU,
    Boxes,
    compute_areas,
    compute_intersections,
    compute_overlaps,
    compute_pairwise_ious,
    select_best,
)
from pipeline_ops.models.detection import Candidates, Head, check_that, compute_focal_losses

BoxLoss = Literal["smooth_l1", "giou"]

LEVELS = range(3, 8)
"""The levels of the pyramid. Level l has a cell for every 2**l pixels."""

_MIN_CROWD_FRACTION = 0.7
"""An anchor is ignored if at least this share of its area is in a crowd: Detectron's
TRAIN.CROWD_FILTER_THRESH.
"""
_MAX_LOG_SCALE = math.log(1000 / 16)
"""The largest logarithm of a box's size relative to its anchor: Detectron's BBOX_XFORM_CLIP. Keeps
`exp` finite.
"""
_MIN_SIDE = 1e-3
_MAX_CANDIDATES = 1000
"""The number of best scores that are kept for each level, and then for all levels together. The
portable suppression compares all of them with all others.
"""
_CANDIDATES_OF_DETECTION = 3
"""At least this many candidates are kept for each detection of an answer."""
_NUM_PARALLEL_IMAGES = 2
"""The number of images that are matched at once. Each takes some 60 MB of memory at 640x640 pixels
and 100 boxes.
"""


class AnchorTargets(NamedTuple):
    """The targets of the anchors of an image. Those of a batch have B as first axis.

    An anchor that is neither an object nor ignored is background.

    Attributes:
      classes: int32 [A], -1 where `is_object` is false.
      corners: float32 [A, 4] in pixels: the box that the anchor overlaps most, the first of equals.
          It counts where `is_object` is true.
      is_object, is_ignored: bool [A].
    """

    classes: tf.Tensor
    corners: tf.Tensor
    is_object: tf.Tensor
    is_ignored: tf.Tensor


@dataclasses.dataclass(frozen=True)
class AnchorHead(Head):
    """Computes losses and detections from {"logits": [B, A, C], "deltas": [B, A, 4]}.

    The defaults are those of the paper and of Detectron. The Object Detection API has the same
    formulas with other values: its Huber loss is `box_loss_delta` times our smooth L1.

    Attributes:
      image_size: height and width in pixels.
      anchor_scale: the side of a level's smallest square anchor, in cells. See `make_anchors`.
      scales_per_octave: the number of sizes of an anchor from one level to the next.
      aspect_ratios: height by width of the anchors.
      matched_iou: from this overlap on, an anchor stands for an object.
      unmatched_iou: below this overlap, an anchor is background.
      box_loss: `smooth_l1` of the result of `encode_boxes`, summed over the four values, or `giou`:
          1 - GIoU (Rezatofighi et al. 2019).
      box_scales: factors of the four values of `encode_boxes`, for y, x, height and width.
      box_loss_delta: the error at which smooth L1 turns from a parabola into a line. The default is
          Detectron's RETINANET.BBOX_REG_BETA.
      box_loss_weight, class_loss_weight: factors of the two parts of the loss.
      focal_alpha: the weight of the focal loss of objects. That of background is 1 - alpha. Without
          a value, both are 1.
      focal_gamma: the power of the focal loss. With 0, it is a cross entropy.
      nms_iou: two detections of a class that overlap by more are one.
    """

    image_size: tuple[int, int]
    num_classes: int
    anchor_scale: float = 4.0
    scales_per_octave: int = 3
    aspect_ratios: Sequence[float] = (0.5, 1.0, 2.0)
    matched_iou: float = 0.5
    unmatched_iou: float = 0.4
    box_loss: BoxLoss = "smooth_l1"
    box_scales: Sequence[float] = (1.0, 1.0, 1.0, 1.0)
    box_loss_delta: float = 0.11
    box_loss_weight: float = 1.0
    class_loss_weight: float = 1.0
    focal_alpha: float | None = 0.25
    focal_gamma: float = 2.0
    nms_iou: float = SAME_OBJECT_IOU
    max_boxes: int | None = None
    max_detections: int = COCO_DETECTIONS
    metrics = ("class_loss", "box_iou")

    def __post_init__(self) -> None:
        """Raises ConfigError if a value is not possible."""
        positive, not_negative = (lambda value: value > 0), (lambda value: value >= 0)
        rules: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
            "anchor_scale": ("above 0", positive),
            "scales_per_octave": ("at least 1", lambda value: value >= 1),
            "aspect_ratios": (
                "numbers above 0",
                lambda values: bool(values) and all(map(positive, values)),
            ),
            "matched_iou": ("from 0 to 1", lambda value: 0 <= value <= 1),
            "unmatched_iou": ("from 0 to matched_iou", lambda v: 0 <= v <= self.matched_iou),
            "box_loss": ("smooth_l1 or giou", lambda value: value in get_args(BoxLoss)),
            "box_scales": (
                "four numbers above 0",
                lambda values: len(values) == 4 and all(map(positive, values)),
            ),
            "box_loss_delta": ("above 0", positive),
            "box_loss_weight": ("at least 0", not_negative),
            "class_loss_weight": ("at least 0", not_negative),
            "focal_alpha": ("from 0 to 1, or null", lambda v: v is None or 0 <= v <= 1),
            "focal_gamma": ("at least 0", not_negative),
            "nms_iou": ("above 0, and at most 1", lambda value: 0 < value <= 1),
            "max_boxes": ("at least 1", lambda value: value is None or value >= 1),
        }
        for name, (rule, is_valid) in rules.items():
            value = getattr(self, name)
            check_that(is_valid(value), name, rule, value)

    @functools.cached_property
    def anchors(self) -> np.ndarray:
        """The corners of the anchors in pixels, float32 [A, 4]."""
        return make_anchors(
            self.image_size, self.anchor_scale, self.scales_per_octave, self.aspect_ratios
        )

    @property
    def anchors_per_cell(self) -> int:
        return self.scales_per_octave * len(self.aspect_ratios)

    def compute_sums(
        self, outputs: dict[str, tf.Tensor], labels: Boxes, class_weights: tf.Tensor | float = 1.0
    ) -> tf.Tensor:
        """Returns float32 [4]: the sums of the loss, of its classification part, and of the IoU of
        boxes with their objects, and the number of anchors that stand for an object.
        """
        targets = self.build_targets(labels)
        is_class = tf.one_hot(targets.classes, self.num_classes, on_value=True, off_value=False)
        positive, negative = 1.0, 1.0
        if self.focal_alpha is not None:
            positive, negative = self.focal_alpha, 1 - self.focal_alpha
        losses = compute_focal_losses(
            outputs["logits"], is_class, positive * class_weights, negative, self.focal_gamma
        )
        class_losses = self.class_loss_weight * tf.reduce_sum(losses, axis=-1)
        class_loss = tf.reduce_sum(tf.where(targets.is_ignored, 0.0, class_losses))
        corners = decode_boxes(outputs["deltas"], self.anchors, self.box_scales)
        ious, gious = _compute_ious(corners, targets.corners)
        if self.box_loss == "giou":
            box_losses = 1 - gious
        else:
            wanted = encode_boxes(targets.corners, self.anchors, self.box_scales)
            box_losses = _compute_smooth_l1(outputs["deltas"] - wanted, self.box_loss_delta)
        box_losses = self.box_loss_weight * box_losses
        box_loss = tf.reduce_sum(tf.where(targets.is_object, box_losses, 0.0))
        iou = tf.reduce_sum(tf.where(targets.is_object, ious, 0.0))
        count = tf.reduce_sum(tf.cast(targets.is_object, tf.float32))
        return tf.stack([class_loss + box_loss, class_loss, iou, count])

    def build_targets(self, labels: Boxes) -> AnchorTargets:
        """Returns the targets of all anchors.

        Matches a few images at a time, so that later ones reuse the memory.
        """
        # Each image gets a padding box, so that an image without boxes has one, too.
        one_more = [[0, 0], [0, 1]]
        corners = tf.pad(labels.to_pixels(*self.image_size), [*one_more, [0, 0]])
        classes = tf.pad(labels.classes, one_more, constant_values=-1)
        count = len(self.anchors)
        match = functools.partial(
            match_anchors,
            tf.constant(self.anchors),
            matched_iou=self.matched_iou,
            unmatched_iou=self.unmatched_iou,
        )
        targets: AnchorTargets = tf.map_fn(
            lambda each: match(*each),
            (corners, classes, tf.pad(labels.is_crowd, one_more)),
            parallel_iterations=_NUM_PARALLEL_IMAGES,
            fn_output_signature=AnchorTargets(
                tf.TensorSpec([count], tf.int32),
                tf.TensorSpec([count, 4], tf.float32),
                tf.TensorSpec([count], tf.bool),
                tf.TensorSpec([count], tf.bool),
            ),
        )
        return targets

    def find_candidates(self, outputs: dict[str, tf.Tensor]) -> Candidates:
        """Returns the best candidates of all levels."""
        scores = tf.sigmoid(outputs["logits"])
        sizes = [rows * columns for rows, columns in compute_grid_shapes(self.image_size)]
        ends = [self.anchors_per_cell * cells for cells in itertools.accumulate(sizes, initial=0)]
        limit = max(_MAX_CANDIDATES, _CANDIDATES_OF_DETECTION * self.max_detections)
        levels = []
        for start, end in itertools.pairwise(ends):
            best, positions, classes = select_best(scores[:, start:end], limit)
            levels.append((best, start + positions, classes))
        best, anchors, classes = (tf.concat(parts, axis=1) for parts in zip(*levels, strict=True))
        best, indices = tf.math.top_k(best, min(limit, best.shape[1]))
        anchors, classes = (tf.gather(each, indices, batch_dims=1) for each in (anchors, classes))
        deltas = tf.gather(outputs["deltas"], anchors, batch_dims=1)
        corners = decode_boxes(deltas, tf.gather(self.anchors, anchors), self.box_scales)
        height, width = self.image_size
        return corners / tf.constant([height, width, height, width], tf.float32), best, classes


def compute_grid_shapes(image_size: tuple[int, int]) -> list[tuple[int, int]]:
    """Returns the rows and columns of each level, for an image of this height and width."""
    height, width = image_size
    return [(math.ceil(height / 2**level), math.ceil(width / 2**level)) for level in LEVELS]


def make_anchors(
    image_size: tuple[int, int],
    scale: float,
    scales_per_octave: int = 3,
    aspect_ratios: Sequence[float] = (0.5, 1.0, 2.0),
) -> np.ndarray:
    """Returns float32 [A, 4] in pixels: level by level, row by row, cell by cell.

    Within a cell, anchors are ordered by size and then by ratio. An anchor of level l has the area
    (scale * 2**l * 2**(k / scales_per_octave))**2 for each k below `scales_per_octave`. Its centre
    is that of its cell. It may reach out of the image. `scale` is the side of a level's smallest
    square anchor, in cells. The paper's value is 4, which makes 32 to 813 pixels in all.
    """
    scales = [2 ** (octave / scales_per_octave) for octave in range(scales_per_octave)]
    levels = []
    for level, shape in zip(LEVELS, compute_grid_shapes(image_size), strict=True):
        stride = 2**level
        sizes = [(scale * stride * s, math.sqrt(ratio)) for s in scales for ratio in aspect_ratios]
        sides = np.array([(size * root, size / root) for size, root in sizes])
        y, x = ((np.arange(count) + 0.5) * stride for count in shape)
        centers = np.stack(np.meshgrid(y, x, indexing="ij"), axis=-1)[:, :, None, :]
        corners = np.concatenate([centers - sides / 2, centers + sides / 2], axis=-1)
        levels.append(corners.reshape(-1, 4).astype(np.float32))
    return np.concatenate(levels)


def match_anchors(
    anchors: tf.Tensor,
    corners: tf.Tensor,
    classes: tf.Tensor,
    is_crowd: tf.Tensor,
    matched_iou: float = 0.5,
    unmatched_iou: float = 0.4,
) -> AnchorTargets:
    """Matches anchors to the boxes of one image.

    An anchor stands for an object from `matched_iou` on, and for background below `unmatched_iou`.
    The anchors that overlap an object most, all of equals, stand for an object at any overlap
    ("low-quality matches", Ren et al. 2015, section 3.1.2). This object is the one that the anchor
    itself overlaps most, as in Detectron. A crowd is not an object, and anchors inside a crowd are
    not background.

    Args:
      anchors, corners: float32 [A, 4] and [N, 4], N at least 1.
      classes, is_crowd: int32 and bool [N]. A padding box has the class -1.
    """
    is_box = classes >= 0
    is_learned = is_box & ~is_crowd
    ious = tf.where(is_learned[None, :], compute_pairwise_ious(anchors, corners), 0.0)
    best_iou = tf.reduce_max(ious, axis=1)
    best_iou_per_box = tf.reduce_max(ious, axis=0, keepdims=True)
    is_best = tf.reduce_any((ious == best_iou_per_box) & (best_iou_per_box > 0), axis=1)
    is_object = (best_iou >= matched_iou) | is_best
    common = compute_intersections(anchors[:, None, :], corners[None, :, :])
    is_inside = common / compute_areas(anchors)[:, None] >= _MIN_CROWD_FRACTION
    is_in_crowd = tf.reduce_any(is_inside & (is_box & is_crowd)[None, :], axis=1)
    is_ignored = ~is_object & ((best_iou >= unmatched_iou) | is_in_crowd)
    box = tf.argmax(ious, axis=1, output_type=tf.int32)
    return AnchorTargets(
        tf.where(is_object, tf.gather(classes, box), -1),
        tf.gather(corners, box),
        is_object,
        is_ignored,
    )


def encode_boxes(
    corners: tf.Tensor, anchors: tf.Tensor, scales: Sequence[float] = (1.0, 1.0, 1.0, 1.0)
) -> tf.Tensor:
    """Returns float32 [..., A, 4]: boxes in the encoding of the network's outputs.

    (dy, dx) of the centre are in units of the anchor's height and width. (dh, dw) are the
    logarithms of the box's size relative to the anchor's (Girshick et al. 2014, appendix C). The
    four are multiplied by `scales`.
    """
    centers, sizes = _to_centers_and_sizes(corners)
    from_centers, from_sizes = _to_centers_and_sizes(anchors)
    shifts = (centers - from_centers) / from_sizes
    stretches = tf.math.log(tf.maximum(sizes, _MIN_SIDE) / from_sizes)
    return tf.concat([shifts, stretches], axis=-1) * tf.constant(scales, tf.float32)


def decode_boxes(
    deltas: tf.Tensor, anchors: tf.Tensor, scales: Sequence[float] = (1.0, 1.0, 1.0, 1.0)
) -> tf.Tensor:
    """Returns float32 [..., A, 4]: the inverse of `encode_boxes`, in pixels."""
    deltas = deltas / tf.constant(scales, tf.float32)
    from_centers, from_sizes = _to_centers_and_sizes(anchors)
    centers = from_centers + deltas[..., :2] * from_sizes
    halves = tf.exp(tf.minimum(deltas[..., 2:], _MAX_LOG_SCALE)) * from_sizes / 2
    return tf.concat([centers - halves, centers + halves], axis=-1)


def _to_centers_and_sizes(corners: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    low, high = corners[..., :2], corners[..., 2:]
    return (low + high) / 2, high - low


def _compute_smooth_l1(errors: tf.Tensor, delta: float) -> tf.Tensor:
    """Returns the smooth L1 loss (Girshick 2015, equation 3), summed over the last axis."""
    sizes = tf.abs(errors)
    losses = tf.where(sizes < delta, sizes**2 / (2 * delta), sizes - delta / 2)
    return tf.reduce_sum(losses, axis=-1)


def _compute_ious(corners: tf.Tensor, others: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns IoU and generalised IoU of boxes, one by one."""
    low = tf.minimum(corners[..., :2], others[..., :2])
    high = tf.maximum(corners[..., 2:], others[..., 2:])
    hull = tf.reduce_prod(high - low, axis=-1)
    intersection, union = compute_overlaps(corners, others)
    iou = tf.math.divide_no_nan(intersection, union)
    return iou, iou - tf.math.divide_no_nan(hull - union, hull)
