"""The head of `center_detector`: target maps for given boxes, losses, and decoding into detections.

Legend: B batch, N boxes of an image (padded), G H rows and columns of the grid, C classes. A cell
is a square of STRIDE pixels.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from pipeline_ops.models.boxes import Boxes, Detections, suppress, suppress_portably

STRIDE = 4
REACH_PIXELS = 16.0
"""The unit of the distances that the network predicts: about half of a small object."""

_BOX_WEIGHT = 2.0
_CANDIDATES = 300
"""The number of peaks that are considered for each image."""


@dataclasses.dataclass(frozen=True)
class CenterTargets:
    """The target maps of a batch.

    Attributes:
      heat: float32 [B, G, H, C], 1 at a centre, falling off around it.
      corners: [B, G, H, 4], the box that a cell stands for, in pixels.
      shares: [B, G, H], the weight of the cell. The weights of each box sum to 1.
      is_ignored: [B, G, H], true in a crowd.
    """

    heat: tf.Tensor
    corners: tf.Tensor
    shares: tf.Tensor
    is_ignored: tf.Tensor


@dataclasses.dataclass(frozen=True)
class CenterHead:
    """Computes losses and detections from the maps of a grid."""

    grid: tuple[int, int]
    num_classes: int
    metrics = ("heat_loss", "box_iou")
    max_boxes = None

    def sums(self, outputs: dict[str, tf.Tensor], labels: Boxes) -> tf.Tensor:
        """Returns float32 [4]: the sums of the loss, of the heat map's part of it and of the boxes'
        IoU, and the number of boxes.
        """
        targets = self.targets(labels)
        heat_loss = tf.reduce_sum(_focal_losses(tf.cast(outputs["heat"], tf.float32), targets))
        ious = _ious(self._corners(tf.cast(outputs["sides"], tf.float32)), targets.corners)
        count = tf.reduce_sum(tf.cast(labels.is_learned, tf.float32))
        found = tf.reduce_sum(targets.shares * ious)
        box_loss = tf.reduce_sum(targets.shares) - found
        return tf.stack([heat_loss + _BOX_WEIGHT * box_loss, heat_loss, found, count])

    def targets(self, labels: Boxes) -> CenterTargets:
        """Returns targets with a Gaussian on each centre, as wide as the box allows.

        The cells around a centre stand for its box.
        """
        pixels = labels.in_pixels(*(STRIDE * size for size in self.grid))
        ymin, xmin, ymax, xmax = tf.unstack(pixels, axis=-1)
        distances2, is_near = self._distances(ymin, xmin, ymax, xmax)
        sigma = tf.maximum(0.6, tf.minimum(ymax - ymin, xmax - xmin) / STRIDE / 6)[..., None, None]
        heat = tf.exp(-distances2 / (2 * sigma**2))
        owned = _owned(
            distances2, is_near & labels.is_learned[..., None, None], (ymax - ymin) * (xmax - xmin)
        )
        cells = tf.reduce_sum(owned, axis=[2, 3], keepdims=True)
        return CenterTargets(
            heat=_largest_by_class(
                heat, tf.where(labels.is_learned, labels.classes, -1), self.num_classes
            ),
            corners=tf.einsum("bngh,bnk->bghk", owned, pixels),
            shares=tf.reduce_sum(owned / tf.maximum(cells, 1.0), axis=1),
            is_ignored=tf.reduce_any(
                self._inside(ymin, xmin, ymax, xmax) & labels.is_crowd[..., None, None], axis=1
            ),
        )

    def detect(self, outputs: dict[str, tf.Tensor]) -> Detections:
        """Returns the peaks of the heat maps with their boxes. Overlapping ones of a class are
        suppressed.
        """
        return suppress(*self._candidates(outputs), self.num_classes)

    def detect_portably(self, outputs: dict[str, tf.Tensor]) -> Detections:
        """Does the same as `detect`, with operations that TFLite and ONNX have."""
        return suppress_portably(*self._candidates(outputs))

    def _candidates(self, outputs: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns boxes, scores and classes, as `suppress` takes them."""
        scores = tf.sigmoid(tf.cast(outputs["heat"], tf.float32))
        peaks = tf.where(scores >= tf.nn.max_pool2d(scores, 3, 1, "SAME"), scores, 0.0)
        rows, columns = self.grid
        best, places = tf.math.top_k(
            tf.reshape(peaks, [-1, rows * columns * self.num_classes]),
            min(_CANDIDATES, rows * columns * self.num_classes),
        )
        size = tf.constant([rows, columns, rows, columns], tf.float32) * STRIDE
        boxes = tf.reshape(
            self._corners(tf.cast(outputs["sides"], tf.float32)) / size, [-1, rows * columns, 4]
        )
        return (
            tf.gather(boxes, places // self.num_classes, batch_dims=1),
            best,
            places % self.num_classes,
        )

    def _corners(self, sides: tf.Tensor) -> tf.Tensor:
        """Returns distances to top, left, bottom and right as corners in pixels, [B, G, H, 4]."""
        y, x = self._cell_centers()
        return tf.stack(
            [y - sides[..., 0], x - sides[..., 1], y + sides[..., 2], x + sides[..., 3]], axis=-1
        )

    def _cell_centers(self) -> tuple[tf.Tensor, tf.Tensor]:
        rows, columns = ((tf.range(size, dtype=tf.float32) + 0.5) * STRIDE for size in self.grid)
        return rows[:, None], columns[None, :]

    def _distances(
        self, ymin: tf.Tensor, xmin: tf.Tensor, ymax: tf.Tensor, xmax: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns squared distances, and whether a cell may stand for a box, [B, N, G, H] each.

        The distance is in cells, to the cell of the box's centre. That cell may stand for the box,
        and so may each of the eight cells around it whose own centre is inside the box.
        """

        def from_center(low: tf.Tensor, high: tf.Tensor, size: int) -> tf.Tensor:
            center = tf.clip_by_value(tf.floor((low + high) / 2 / STRIDE), 0.0, size - 1.0)
            return tf.range(size, dtype=tf.float32) - center[..., None]

        dy, dx = (
            from_center(ymin, ymax, self.grid[0])[..., :, None],
            from_center(xmin, xmax, self.grid[1])[..., None, :],
        )
        distances2 = dy**2 + dx**2
        return distances2, (distances2 == 0) | (
            (distances2 <= 2) & self._inside(ymin, xmin, ymax, xmax)
        )

    def _inside(
        self, ymin: tf.Tensor, xmin: tf.Tensor, ymax: tf.Tensor, xmax: tf.Tensor
    ) -> tf.Tensor:
        """Returns whether the centre of a cell is in a box, [B, N, G, H]."""
        y, x = self._cell_centers()
        ymin, xmin, ymax, xmax = (edge[..., None, None] for edge in (ymin, xmin, ymax, xmax))
        return (y > ymin) & (y < ymax) & (x > xmin) & (x < xmax)


def _owned(distances2: tf.Tensor, is_candidate: tf.Tensor, areas: tf.Tensor) -> tf.Tensor:
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


def _largest_by_class(heat: tf.Tensor, classes: tf.Tensor, num_classes: int) -> tf.Tensor:
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


def _focal_losses(logits: tf.Tensor, targets: CenterTargets) -> tf.Tensor:
    """Returns the focal loss of CornerNet (Law and Deng 2018, equation 1, alpha 2, beta 4), [B, G,
    H, C].
    """
    probability = tf.sigmoid(logits)
    missed = (1 - probability) ** 2 * tf.math.softplus(-logits)
    imagined = (1 - targets.heat) ** 4 * probability**2 * tf.math.softplus(logits)
    imagined = tf.where(targets.is_ignored[..., None], 0.0, imagined)
    return tf.where(targets.heat >= 0.999, missed, imagined)


def _ious(corners: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Returns the IoU of boxes in pixels, cell by cell."""
    inter = tf.maximum(
        tf.minimum(corners[..., 2:], others[..., 2:])
        - tf.maximum(corners[..., :2], others[..., :2]),
        0.0,
    )
    inter = inter[..., 0] * inter[..., 1]
    area, other_area = (
        tf.reduce_prod(each[..., 2:] - each[..., :2], axis=-1) for each in (corners, others)
    )
    return (inter + 1e-4) / (area + other_area - inter + 1e-4)
