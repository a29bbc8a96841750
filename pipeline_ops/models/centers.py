"""The head of `center_detector`: target maps for given boxes, losses, and decoding into detections.

Legend: B batch, N boxes of an image (padded), G H rows and columns of the grid, C classes. A cell
is a square of STRIDE pixels.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from pipeline_ops.models.boxes import (
    Boxes,
    compute_areas,
    compute_intersections,
)
from pipeline_ops.models.detection import Head

STRIDE = 4
DISTANCE_SCALE_PIXELS = 16.0
"""The unit of the distances that the network predicts: about half of a small object."""

_BOX_WEIGHT = 2.0
_MAX_CANDIDATES = 300
"""The number of peaks that are considered for each image."""


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
    metrics = ("heat_loss", "box_iou")
    max_boxes = None

    def compute_sums(self, outputs: dict[str, tf.Tensor], labels: Boxes) -> tf.Tensor:
        """Returns float32 [4]: the sums of the loss, of the heat map's part of it and of the boxes'
        IoU, and the number of boxes.
        """
        targets = self.build_targets(labels)
        heat_loss = tf.reduce_sum(
            _compute_focal_losses(tf.cast(outputs["heat"], tf.float32), targets)
        )
        ious = _compute_ious(
            self._to_corners(tf.cast(outputs["sides"], tf.float32)), targets.corners
        )
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
        distances2, is_near = self._compute_distances(ymin, xmin, ymax, xmax)
        sigma = tf.maximum(0.6, tf.minimum(ymax - ymin, xmax - xmin) / STRIDE / 6)[..., None, None]
        heat = tf.exp(-distances2 / (2 * sigma**2))
        assigned = _assign_cells(
            distances2, is_near & labels.is_learned[..., None, None], (ymax - ymin) * (xmax - xmin)
        )
        cells = tf.reduce_sum(assigned, axis=[2, 3], keepdims=True)
        return CenterTargets(
            heat=_reduce_max_by_class(
                heat, tf.where(labels.is_learned, labels.classes, -1), self.num_classes
            ),
            corners=tf.einsum("bngh,bnk->bghk", assigned, pixels),
            weights=tf.reduce_sum(assigned / tf.maximum(cells, 1.0), axis=1),
            is_ignored=tf.reduce_any(
                self._is_inside(ymin, xmin, ymax, xmax) & labels.is_crowd[..., None, None], axis=1
            ),
        )

    def find_candidates(
        self, outputs: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the peaks of the heat maps with their boxes."""
        scores = tf.sigmoid(tf.cast(outputs["heat"], tf.float32))
        peaks = tf.where(scores >= tf.nn.max_pool2d(scores, 3, 1, "SAME"), scores, 0.0)
        rows, columns = self.grid
        best, indices = tf.math.top_k(
            tf.reshape(peaks, [-1, rows * columns * self.num_classes]),
            min(_MAX_CANDIDATES, rows * columns * self.num_classes),
        )
        size = tf.constant([rows, columns, rows, columns], tf.float32) * STRIDE
        boxes = tf.reshape(
            self._to_corners(tf.cast(outputs["sides"], tf.float32)) / size, [-1, rows * columns, 4]
        )
        return (
            tf.gather(boxes, indices // self.num_classes, batch_dims=1),
            best,
            indices % self.num_classes,
        )

    def _to_corners(self, sides: tf.Tensor) -> tf.Tensor:
        """Returns distances to top, left, bottom and right as corners in pixels, [B, G, H, 4]."""
        y, x = self._compute_cell_centers()
        return tf.stack(
            [y - sides[..., 0], x - sides[..., 1], y + sides[..., 2], x + sides[..., 3]], axis=-1
        )

    def _compute_cell_centers(self) -> tuple[tf.Tensor, tf.Tensor]:
        rows, columns = ((tf.range(size, dtype=tf.float32) + 0.5) * STRIDE for size in self.grid)
        return rows[:, None], columns[None, :]

    def _compute_distances(
        self, ymin: tf.Tensor, xmin: tf.Tensor, ymax: tf.Tensor, xmax: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns squared distances, and whether a cell may stand for a box, [B, N, G, H] each.

        The distance is in cells, to the cell of the box's centre. That cell may stand for the box,
        and so may each of the eight cells around it whose own centre is inside the box.
        """

        def compute_offset_from_center(low: tf.Tensor, high: tf.Tensor, size: int) -> tf.Tensor:
            center = tf.clip_by_value(tf.floor((low + high) / 2 / STRIDE), 0.0, size - 1.0)
            return tf.range(size, dtype=tf.float32) - center[..., None]

        dy, dx = (
            compute_offset_from_center(ymin, ymax, self.grid[0])[..., :, None],
            compute_offset_from_center(xmin, xmax, self.grid[1])[..., None, :],
        )
        distances2 = dy**2 + dx**2
        return distances2, (distances2 == 0) | (
            (distances2 <= 2) & self._is_inside(ymin, xmin, ymax, xmax)
        )

    def _is_inside(
        self, ymin: tf.Tensor, xmin: tf.Tensor, ymax: tf.Tensor, xmax: tf.Tensor
    ) -> tf.Tensor:
        """Returns whether the centre of a cell is in a box, [B, N, G, H]."""
        y, x = self._compute_cell_centers()
        ymin, xmin, ymax, xmax = (edge[..., None, None] for edge in (ymin, xmin, ymax, xmax))
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
    """Reduces [B, N, G, H] to the largest value over the boxes of each class, [B, G, H, C]. Boxes
    of class -1 do not count.
    """
    batch, _, rows, columns = tf.unstack(tf.shape(heat))
    segments = tf.where(classes < 0, -1, classes + num_classes * tf.range(batch)[:, None])
    largest = tf.math.unsorted_segment_max(
        tf.reshape(heat, [-1, rows, columns]), tf.reshape(segments, [-1]), num_classes * batch
    )
    return tf.transpose(
        tf.reshape(tf.maximum(largest, 0.0), [batch, num_classes, rows, columns]), [0, 2, 3, 1]
    )


def _compute_focal_losses(logits: tf.Tensor, targets: CenterTargets) -> tf.Tensor:
    """Returns the focal loss of CornerNet (Law and Deng 2018, equation 1, alpha 2, beta 4), [B, G,
    H, C].
    """
    probability = tf.sigmoid(logits)
    positive_losses = (1 - probability) ** 2 * tf.math.softplus(-logits)
    negative_losses = (1 - targets.heat) ** 4 * probability**2 * tf.math.softplus(logits)
    negative_losses = tf.where(targets.is_ignored[..., None], 0.0, negative_losses)
    return tf.where(targets.heat >= 0.999, positive_losses, negative_losses)


def _compute_ious(corners: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Returns the IoU of boxes in pixels, cell by cell."""
    inter = compute_intersections(corners, others)
    union = compute_areas(corners) + compute_areas(others) - inter
    return (inter + 1e-4) / (union + 1e-4)
