"""A small detector without anchors: a heat map gives an object's centre, four distances its extent.

The idea is CenterNet's (Zhou, Wang and Krähenbühl 2019) with the box regression of FCOS (Tian et
al. 2019), and a network small enough to learn on two CPU cores in minutes. It uses group
normalisation instead of batch normalisation. Group normalisation looks at one image at a time, so
neither the number of workers nor a small batch changes the result, and no worker waits for another
inside the network.

Legend: B batch, N boxes of an image (padded), G H rows and columns of the grid, C classes. A cell
is a square of STRIDE pixels.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf
from keras import Input, KerasTensor, Model, initializers, layers

from pipeline_ops.contract.results import COCO_DETECTIONS
from pipeline_ops.models.boxes import Boxes, compute_overlaps, select_best
from pipeline_ops.models.detection import (
    Candidates,
    Head,
    check_max_detections,
    check_multiple,
    check_that,
    compute_focal_losses,
)

STRIDE = 4
DISTANCE_SCALE_PIXELS = 16.0
"""The unit of the distances that the network predicts: about half of a small object."""

_BOX_WEIGHT = 2.0
_CANDIDATES_OF_DETECTION = 3
"""The number of peaks that are considered for each detection of an answer."""
_DEEPEST_STRIDE = 16
_INITIAL_LOGIT = -3.5
"""The initial value of the heat map's logits. Nearly every cell is not a centre, and the first
steps should not be spent on learning that.
"""


def build(
    image_shape: tuple[int, int, int],
    num_classes: int,
    width: int = 16,
    max_detections: int | None = None,
) -> Model:
    """Builds a model from images to heat maps and distances on a grid of stride 4.

    The outputs are {"heat": logits [B, G, H, classes], "sides": distances [B, G, H, 4]}.

    Args:
      image_shape: height and width must be multiples of 16.
      width: channels of the first layer, a multiple of 8; 16 makes about 0.2 million parameters, 32
          0.9 million, 48 2 million.
      max_detections: an argument of the head, the largest number of detections of an image.
    """
    check_multiple("center_detector", image_shape, _DEEPEST_STRIDE)
    check_that(width >= 8 and width % 8 == 0, "width", "a multiple of 8", width)
    check_max_detections(max_detections)
    images = Input(image_shape, name="images")
    features = _build_features(layers.Rescaling(1 / 128, -1)(images), width)
    bias = initializers.Constant(_INITIAL_LOGIT)
    heat_conv = layers.Conv2D(num_classes, 1, bias_initializer=bias, dtype="float32")
    heat = heat_conv(build_conv_block(features, 3 * width))
    sides_conv = layers.Conv2D(4, 1, activation="softplus", dtype="float32")
    sides = sides_conv(build_conv_block(features, 2 * width))
    sides = layers.Rescaling(DISTANCE_SCALE_PIXELS, dtype="float32")(sides)
    return Model(images, {"heat": heat, "sides": sides})


def make_head(
    image_shape: tuple[int, int, int],
    num_classes: int,
    width: int = 16,
    max_detections: int | None = None,
) -> CenterHead:
    grid = image_shape[0] // STRIDE, image_shape[1] // STRIDE
    return CenterHead(grid, num_classes, check_max_detections(max_detections))


def _build_features(x: KerasTensor, width: int) -> KerasTensor:
    """Goes down to stride 16 and back up to stride 4, with skip connections."""
    x = build_conv_block(build_conv_block(x, width, strides=2), 2 * width, strides=2)
    quarter = build_conv_block(x, 2 * width)
    eighth = build_conv_block(build_conv_block(quarter, 3 * width, strides=2), 3 * width)
    x = build_conv_block(build_conv_block(eighth, 4 * width, strides=2), 4 * width)
    # Objects of more than a hundred pixels need a view of more than a hundred pixels.
    x = build_conv_block(x, 4 * width, dilation=2)
    for filters, skipped in ((3 * width, eighth), (2 * width, quarter)):
        x = layers.UpSampling2D(2)(build_conv_block(x, filters, kernel=1))
        x = build_conv_block(layers.Add()([x, skipped]), 3 * width)
    return x


def build_conv_block(
    x: KerasTensor, filters: int, kernel: int = 3, strides: int = 1, dilation: int = 1
) -> KerasTensor:
    x = layers.Conv2D(filters, kernel, strides, "same", dilation_rate=dilation, use_bias=False)(x)
    return layers.ReLU()(layers.GroupNormalization(8)(x))


@dataclasses.dataclass(frozen=True)
class CenterTargets:
    """The target maps of a batch.

    Attributes:
      heat: float32 [B, G, H, C], 1 at a centre, falling off around it.
      corners: [B, G, H, 4], the box that a cell stands for, in pixels.
      weights: [B, G, H], the weight of the cell. The weights of each box sum to 1.
      is_ignored: [B, G, H], true in a crowd.
    """

    heat: tf.Tensor
    corners: tf.Tensor
    weights: tf.Tensor
    is_ignored: tf.Tensor


@dataclasses.dataclass(frozen=True)
class CenterHead(Head):
    """Computes losses and detections from the maps of a grid."""

    grid: tuple[int, int]
    num_classes: int
    max_detections: int = COCO_DETECTIONS
    metrics = ("heat_loss", "box_iou")
    max_boxes = None

    def compute_sums(
        self, outputs: dict[str, tf.Tensor], labels: Boxes, class_weights: tf.Tensor | float = 1.0
    ) -> tf.Tensor:
        """Returns float32 [4]: the sums of the loss, of its heat map part and of the boxes' IoU,
        and the number of boxes.
        """
        targets = self.build_targets(labels)
        # The focal loss of CornerNet (Law and Deng 2018, equation 1, alpha 2, beta 4).
        background = tf.where(targets.is_ignored[..., None], 0.0, (1 - targets.heat) ** 4)
        losses = compute_focal_losses(
            outputs["heat"], targets.heat >= 0.999, class_weights, background
        )
        heat_loss = tf.reduce_sum(losses)
        corners = self._to_corners(outputs["sides"])
        intersections, unions = compute_overlaps(corners, targets.corners)
        ious = (intersections + 1e-4) / (unions + 1e-4)
        count = tf.reduce_sum(tf.cast(labels.is_learned, tf.float32))
        found = tf.reduce_sum(targets.weights * ious)
        box_loss = tf.reduce_sum(targets.weights) - found
        return tf.stack([heat_loss + _BOX_WEIGHT * box_loss, heat_loss, found, count])

    def build_targets(self, labels: Boxes) -> CenterTargets:
        """Returns targets with a Gaussian on each centre, as wide as the box allows.

        The cells around a centre stand for its box.
        """
        pixels = labels.to_pixels(*(STRIDE * size for size in self.grid))
        ymin, xmin, ymax, xmax = tf.unstack(pixels, axis=-1)
        distances2, is_near = self._compute_distances(pixels)
        sigma = tf.maximum(0.6, tf.minimum(ymax - ymin, xmax - xmin) / STRIDE / 6)[..., None, None]
        heat = tf.exp(-distances2 / (2 * sigma**2))
        is_candidate = is_near & labels.is_learned[..., None, None]
        assigned = _assign_cells(distances2, is_candidate, (ymax - ymin) * (xmax - xmin))
        cells = tf.reduce_sum(assigned, axis=[2, 3], keepdims=True)
        classes = tf.where(labels.is_learned, labels.classes, -1)
        in_crowd = self._is_inside(pixels) & labels.is_crowd[..., None, None]
        return CenterTargets(
            heat=_reduce_max_by_class(heat, classes, self.num_classes),
            corners=tf.einsum("bngh,bnk->bghk", assigned, pixels),
            weights=tf.reduce_sum(assigned / tf.maximum(cells, 1.0), axis=1),
            is_ignored=tf.reduce_any(in_crowd, axis=1),
        )

    def find_candidates(self, outputs: dict[str, tf.Tensor]) -> Candidates:
        """Returns the peaks of the heat maps with their boxes."""
        scores = tf.sigmoid(outputs["heat"])
        peaks = tf.where(scores >= tf.nn.max_pool2d(scores, 3, 1, "SAME"), scores, 0.0)
        rows, columns = self.grid
        cells = rows * columns
        flat = tf.reshape(peaks, [-1, cells, self.num_classes])
        best, positions, classes = select_best(flat, _CANDIDATES_OF_DETECTION * self.max_detections)
        size = tf.constant([rows, columns, rows, columns], tf.float32) * STRIDE
        corners = self._to_corners(outputs["sides"]) / size
        boxes = tf.gather(tf.reshape(corners, [-1, cells, 4]), positions, batch_dims=1)
        return boxes, best, classes

    def _to_corners(self, sides: tf.Tensor) -> tf.Tensor:
        """Returns distances to top, left, bottom and right as corners in pixels, [B, G, H, 4]."""
        y, x = self._compute_cell_centers()
        return tf.stack(
            [y - sides[..., 0], x - sides[..., 1], y + sides[..., 2], x + sides[..., 3]], axis=-1
        )

    def _compute_cell_centers(self) -> tuple[tf.Tensor, tf.Tensor]:
        rows, columns = ((tf.range(size, dtype=tf.float32) + 0.5) * STRIDE for size in self.grid)
        return rows[:, None], columns[None, :]

    def _compute_distances(self, corners: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns squared distances, and whether a cell may stand for a box, [B, N, G, H] each.

        The distance is in cells, to the cell of the box's centre. That cell may stand for the box,
        and so may each of the eight cells around it whose own centre is inside the box.
        """

        def compute_offset_from_center(low: tf.Tensor, high: tf.Tensor, size: int) -> tf.Tensor:
            center = tf.clip_by_value(tf.floor((low + high) / 2 / STRIDE), 0.0, size - 1.0)
            return tf.range(size, dtype=tf.float32) - center[..., None]

        ymin, xmin, ymax, xmax = tf.unstack(corners, axis=-1)
        dy = compute_offset_from_center(ymin, ymax, self.grid[0])[..., :, None]
        dx = compute_offset_from_center(xmin, xmax, self.grid[1])[..., None, :]
        distances2 = dy**2 + dx**2
        is_near = (distances2 <= 2) & self._is_inside(corners)
        return distances2, (distances2 == 0) | is_near

    def _is_inside(self, corners: tf.Tensor) -> tf.Tensor:
        """Returns whether the centre of a cell is in a box, [B, N, G, H]."""
        y, x = self._compute_cell_centers()
        ymin, xmin, ymax, xmax = tf.unstack(corners[..., None, None, :], axis=-1)
        return (y > ymin) & (y < ymax) & (x > xmin) & (x < xmax)


def _assign_cells(distances2: tf.Tensor, is_candidate: tf.Tensor, areas: tf.Tensor) -> tf.Tensor:
    """Returns float32 [B, N, G, H] of 0 and 1: the box that a cell stands for.

    The nearest centre wins. The smaller one of equally near boxes wins, because it has fewer cells,
    and the first one of equal boxes.
    """
    order = tf.cast(tf.argsort(tf.argsort(areas, axis=1, stable=True), axis=1), tf.float32)
    cost = tf.where(
        is_candidate,
        distances2 + order[..., None, None] / (tf.cast(tf.shape(areas)[1], tf.float32) + 1),
        float("inf"),
    )
    return tf.cast(is_candidate & (cost == tf.reduce_min(cost, axis=1, keepdims=True)), tf.float32)


def _reduce_max_by_class(heat: tf.Tensor, classes: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Reduces [B, N, G, H] to the largest value over the boxes of each class, [B, G, H, C].

    Boxes of class -1 do not count.
    """
    batch, _, rows, columns = tf.unstack(tf.shape(heat))
    segments = tf.where(classes < 0, -1, classes + num_classes * tf.range(batch)[:, None])
    largest = tf.math.unsorted_segment_max(
        tf.reshape(heat, [-1, rows, columns]), tf.reshape(segments, [-1]), num_classes * batch
    )
    by_class = tf.reshape(tf.maximum(largest, 0.0), [batch, num_classes, rows, columns])
    return tf.transpose(by_class, [0, 2, 3, 1])
