"""Object detection: boxes with classes for each image. Common parts of all detectors.

The task is the same for every detector. The model's head (`CenterHead`, `AnchorHead`) interprets
the outputs. The step gets the boxes themselves, a few hundred bytes for an image, and the head
makes its targets from them. On a GPU that is cheaper than making target maps on the CPU and copying
them.

The loss is a mean over boxes, not over examples: its sum over all workers is divided by the head's
count. Otherwise an image with one object would weigh as much as one with a hundred.

A box is (ymin, xmin, ymax, xmax), as fractions of the image's height and width, so it is valid for
any size of the image.

Legend: B batch, N boxes of an image (padded), K candidates, D detections, C classes, R ranges of
scores, T overlaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from pipeline_ops.artifacts.dataset import BOX_EDGES, BOX_IS_CROWD, BOX_LABEL, ENCODED
from pipeline_ops.artifacts.results import COCO_DETECTIONS, MIN_SCORE, choose_num_counted
from pipeline_ops.errors import ConfigError
from pipeline_ops.input.images import decode_images
from pipeline_ops.models.task import BatchSums, count_false
from pipeline_ops.precision_recall import read_precisions

SAME_OBJECT_IOU = 0.5
"""Two detections of a class with a larger overlap are the same object."""
_NUM_RANGES = 200
"""The number of equal ranges of scores, from 0 to 1."""


class _Metric(NamedTuple):
    """One of COCO's metrics.

    A precision if `limit` is None, otherwise the recall with up to `limit` detections of a class in
    an image. Boxes with an area in pixels outside of `areas` are ignored.
    """

    overlaps: tuple[float, ...] = tuple(np.linspace(0.5, 0.95, 10).tolist())
    areas: tuple[float, float] = (0.0, 1e10)
    limit: int | None = None


_AREAS = {"small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
_METRICS = {
    **{"map": _Metric(), "map_50": _Metric((0.5,)), "map_75": _Metric((0.75,))},
    **{f"map_{size}": _Metric(areas=areas) for size, areas in _AREAS.items()},
    **{f"mar_{limit}": _Metric(limit=limit) for limit in (1, 10, 100)},
    **{f"mar_{size}": _Metric(areas=areas, limit=100) for size, areas in _AREAS.items()},
}

_FEATURES = {
    ENCODED: tf.io.FixedLenFeature([], tf.string),
    **{edge: tf.io.RaggedFeature(tf.float32) for edge in BOX_EDGES},
    BOX_LABEL: tf.io.RaggedFeature(tf.int64),
    BOX_IS_CROWD: tf.io.RaggedFeature(tf.int64),
}


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


Candidates = tuple[tf.Tensor, tf.Tensor, tf.Tensor]
"""Boxes float32 [B, K, 4], scores float32 [B, K] and classes int32 [B, K]."""


class Head(Protocol):
    """The interpretation of a detector's outputs."""

    num_classes: int
    metrics: tuple[str, ...]
    """The names of the sums between the loss and the count."""
    max_boxes: int | None
    """The number of boxes to which the labels of every batch are padded. An image with more boxes
    is an error. None pads to the image with the most boxes.
    """
    max_detections: int
    """The number of detections to which the answer to every image is padded."""
    nms_iou: float = SAME_OBJECT_IOU
    """Two detections of a class with a larger overlap are the same object."""

    def compute_sums(
        self, outputs: Any, labels: Boxes, class_weights: tf.Tensor | float = 1.0
    ) -> tf.Tensor:
        """Returns float32 [2 + metrics]: the sums of the loss and of each metric, and the count.

        `class_weights` (float32 [C]) are factors of the classification loss of each class's boxes.
        """
        ...

    def find_candidates(self, outputs: Any) -> Candidates:
        """Returns boxes that may be objects, with their scores and classes."""
        ...

    def detect(self, outputs: Any) -> Detections:
        """Returns the best candidates, after the suppression of overlapping ones of a class."""
        candidates = self.find_candidates(outputs)
        return suppress(*candidates, self.num_classes, self.max_detections, self.nms_iou)

    def detect_portably(self, outputs: Any) -> Detections:
        """Does the same as `detect`, with operations that TFLite and ONNX have."""
        candidates = self.find_candidates(outputs)
        return suppress_portably(*candidates, self.max_detections, self.nms_iou)


def require(is_valid: bool, parameter: str, rule: str, value: Any) -> None:
    """Raises ConfigError with the rule if a parameter of a detector is not valid."""
    if not is_valid:
        raise ConfigError(f"train.model_parameters.{parameter} must be {rule}, got {value}")


def require_max_detections(value: int | None) -> int:
    """Returns the parameter `max_detections`, or COCO's 100. Raises ConfigError."""
    require(value is None or value >= 1, "max_detections", "at least 1", value)
    return COCO_DETECTIONS if value is None else value


def require_multiple(name: str, image_shape: tuple[int, int, int], stride: int) -> None:
    """Raises ConfigError if height or width of the images is not a multiple of `stride`."""
    height, width, _ = image_shape
    if height % stride or width % stride:
        raise ConfigError(
            f"{name}: height and width of the images must be multiples of {stride}, "
            f"got {height}x{width}. Set them in preprocess.stages, with resize"
        )


class Detection:
    """The task of a model whose outputs a head interprets.

    `gate_metrics` are COCO's metrics that a validation computes. `class_weights` are the
    factors of each class's loss in training, by index. `most_boxes` is the largest number of boxes
    in an image of the data set.
    """

    counts_examples = False
    evaluation_batch_size = 32

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        head: Head,
        gate_metrics: Sequence[str] = ("map_50",),
        class_weights: Sequence[float] | None = None,
        most_boxes: int = 0,
    ):
        self._num_counted = choose_num_counted(most_boxes, [head.max_detections])
        self._class_weights = class_weights
        self._image_shape, self.head = image_shape, head
        self.metrics = self.validation_metrics = head.metrics
        self._gate_metrics = tuple(gate_metrics)
        self._ends = np.cumsum([head.num_classes * _count_columns(name) for name in gate_metrics])
        self.num_counts = int(self._ends[-1])

    def parse(self, serialized_b: tf.Tensor) -> tuple[tf.Tensor, Boxes]:
        """Returns images uint8 [b, H, W, C] and their boxes.

        The boxes are padded to the number of the image with the most boxes, or to the head's
        `max_boxes`.
        """
        features = tf.io.parse_example(serialized_b, _FEATURES)
        images_bHWC = decode_images(features[ENCODED], self._image_shape)
        labels, max_boxes = features[BOX_LABEL], self.head.max_boxes
        if max_boxes is not None:
            tf.debugging.assert_less_equal(
                labels.row_lengths(),
                tf.constant(max_boxes, labels.row_splits.dtype),
                f"train.model_parameters.max_boxes is {max_boxes}, and an image has more boxes. "
                "Set it to the largest number in data.html of the data set, or to null",
            )
        shape = [None, max_boxes]
        corners = tf.stack([features[edge].to_tensor(shape=shape) for edge in BOX_EDGES], axis=-1)
        classes = tf.cast(labels.to_tensor(-1, shape=shape), tf.int32)
        return images_bHWC, Boxes(
            corners, classes, features[BOX_IS_CROWD].to_tensor(shape=shape) > 0
        )

    def for_model(self, model: Any) -> Detection:
        return self

    def list_classes(self, labels: Boxes) -> tf.Tensor:
        return tf.where(labels.is_learned, tf.cast(labels.classes, tf.int64), -1)

    def compute_batch_sums(self, outputs: Any, labels: Boxes, training: bool) -> BatchSums:
        is_weighted = training and self._class_weights is not None
        weights = tf.constant(self._class_weights, tf.float32) if is_weighted else 1.0
        sums = self.head.compute_sums(outputs, labels, weights)
        metrics = sums[1:-1]
        if not training:
            found, (height, width, _) = self.head.detect(outputs), self._image_shape
            counts = [
                count_detections(
                    name, found, labels, self.head.num_classes, height * width, self._num_counted
                )
                for name in self._gate_metrics
            ]
            counts = [tf.reshape(each, [-1]) for each in counts]
            unusable = count_false(self.are_answers_finite(outputs))
            metrics = tf.concat([metrics, *counts, unusable], axis=0)
        return BatchSums(sums[0], metrics, sums[-1])

    def are_answers_finite(self, outputs: Any) -> tf.Tensor:
        # Of the outputs, because the suppression of overlapping boxes drops NaN.
        leaves = tf.nest.flatten(outputs)
        finite = [
            tf.reduce_all(tf.math.is_finite(leaf), axis=list(range(1, leaf.shape.rank)))
            for leaf in leaves
        ]
        return tf.reduce_all(tf.stack(finite), axis=0)

    def compute_from_counts(self, counts: np.ndarray) -> dict[str, float]:
        parts = zip(self._gate_metrics, np.split(counts, self._ends[:-1]), strict=True)
        return {
            name: compute_metric(name, part.reshape(self.head.num_classes, -1))
            for name, part in parts
        }


def _count_columns(name: str) -> int:
    """Returns the number of counts of each class for a metric."""
    metric = _METRICS[name]
    return 2 if metric.limit else len(metric.overlaps) * 2 * _NUM_RANGES + 1


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
    # [K, K]: the second before the first.
    comes_before = tf.constant(np.tril(np.ones((num_boxes, num_boxes), bool), -1))
    one, other = scores[:, :, None], scores[:, None, :]
    is_better = (other > one) | (tf.equal(other, one) & comes_before)
    is_same_class = tf.equal(classes[:, :, None], classes[:, None, :])
    suppresses = tf.cast(overlap & is_same_class & is_better, tf.float32)
    counts = tf.cast(scores > MIN_SCORE, tf.float32)
    kept, _ = tf.while_loop(
        lambda kept, before: tf.reduce_any(tf.not_equal(kept, before)),
        lambda kept, _: (
            counts * tf.cast(tf.linalg.matvec(suppresses, kept) < 0.5, tf.float32),
            kept,
        ),
        [counts, tf.zeros_like(counts) - 1.0],
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


def count_detections(
    name: str,
    found: Detections,
    labels: Boxes,
    num_classes: int,
    num_pixels: int,
    num_counted: int = COCO_DETECTIONS,
) -> tf.Tensor:
    """Counts right and wrong detections of a batch, and true boxes, for `compute_metric`.

    COCO's precision needs all detections of a split, sorted by score. Counts by class and range of
    scores approximate it, and add up over batches and workers. A recall needs no order.

    `evaluation/coco.py` is exact, and its loop over images and classes in NumPy takes ten times as
    long.

    Args:
      name: one of COCO's metrics.
      num_pixels: the area of an image.
      num_counted: the number of detections of a class in an image, the best ones, that count.

    Returns:
      float32 [C, T * 2 * R + 1]: for each overlap, the right detections by range and the wrong ones
      by range, and at the end the true boxes. For a recall float32 [C, 2]: the right detections,
      added up over all overlaps, and the true boxes.
    """
    metric = _METRICS[name]
    low, high = (limit / num_pixels for limit in metric.areas)
    areas = compute_areas(labels.corners)
    is_true = labels.is_learned & (areas >= low) & (areas <= high)
    areas = compute_areas(found.boxes)
    is_in_range = (areas >= low) & (areas <= high)
    classes = tf.cast(found.classes, tf.int32)
    is_detection = tf.sequence_mask(found.num_detections, tf.shape(classes)[1])
    limit = num_counted if metric.limit in (None, COCO_DETECTIONS) else metric.limit
    if found.classes.shape[1] is None or found.classes.shape[1] > limit:
        is_detection &= _rank(classes) < limit
    ranges = tf.minimum(tf.cast(found.scores * _NUM_RANGES, tf.int32), _NUM_RANGES - 1)

    def count(mask: tf.Tensor, cells: tf.Tensor, size: int) -> tf.Tensor:
        counts = tf.math.unsorted_segment_sum(
            tf.cast(mask, tf.float32), tf.maximum(cells, 0), num_classes * size
        )
        return tf.reshape(counts, [num_classes, size])

    cells = classes * _NUM_RANGES + ranges
    columns = []
    for is_right, is_ignored in _match(found, labels, is_true, metric.overlaps):
        if metric.limit:
            columns.append(count(is_right & is_detection, classes, 1))
        else:
            is_wrong = is_detection & is_in_range & ~is_right & ~is_ignored
            columns += [
                count(each, cells, _NUM_RANGES) for each in (is_right & is_detection, is_wrong)
            ]
    if metric.limit:
        columns = [tf.add_n(columns)]
    return tf.concat([*columns, count(is_true, labels.classes, 1)], axis=1)


def _rank(classes: tf.Tensor) -> tf.Tensor:
    """Returns the number of earlier entries of the same class, int32 [B, D]."""
    is_same = tf.cast(tf.equal(classes[:, :, None], classes[:, None]), tf.int32)
    return tf.reduce_sum(tf.linalg.band_part(is_same, -1, 0), axis=2) - 1


def _match(
    found: Detections, labels: Boxes, is_true: tf.Tensor, overlaps: Sequence[float]
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Matches detections with true boxes of their class, the best score first.

    Each detection takes the free box with the largest overlap. It takes a box outside of `is_true`
    (bool [B, N]) only if no other is free. A crowd stays free.

    Returns, for each overlap, whether each detection is matched with a box in `is_true`, and
    whether with another one and thus ignored, bool [B, D] each.
    """
    ious = tf.where(
        labels.is_crowd[:, None],
        _compute_covered_shares(found.boxes, labels.corners),
        compute_pairwise_ious(found.boxes, labels.corners),
    )
    is_possible = tf.equal(tf.cast(found.classes, tf.int32)[:, :, None], labels.classes[:, None])
    ious = tf.where(is_possible, ious, 0.0)
    num_detections, num_boxes = tf.shape(ious)[1], tf.shape(ious)[2]
    limits_T11 = tf.constant(overlaps)[:, None, None]

    def choose(
        number: tf.Tensor, is_free_TBN: tf.Tensor, is_right: tf.Tensor, is_ignored: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        free_TBN = tf.where(is_free_TBN & (ious[:, number] >= limits_T11), ious[:, number], 0.0)
        # A box that counts comes before all others.
        rated_TBN = tf.where(is_true & (free_TBN > 0), free_TBN + 2.0, free_TBN)
        best_TB = tf.argmax(rated_TBN, axis=-1)
        chosen_TBN = tf.one_hot(best_TB, num_boxes, True, False, dtype=tf.bool) & (free_TBN > 0)
        own = tf.one_hot(number, num_detections, True, False, dtype=tf.bool)
        return (
            number + 1,
            is_free_TBN & ~(chosen_TBN & ~labels.is_crowd),
            is_right | (own & tf.reduce_any(chosen_TBN & is_true, axis=-1, keepdims=True)),
            is_ignored | (own & tf.reduce_any(chosen_TBN & ~is_true, axis=-1, keepdims=True)),
        )

    is_free_TBN = tf.tile(tf.ones_like(labels.is_crowd)[None], [len(overlaps), 1, 1])
    nothing_TBD = tf.tile(tf.zeros_like(found.scores, tf.bool)[None], [len(overlaps), 1, 1])
    end = tf.where(num_boxes > 0, tf.reduce_max(found.num_detections), 0)
    any_size = tf.TensorShape([len(overlaps), None, None])
    _, _, is_right, is_ignored = tf.while_loop(
        lambda number, *_: number < end,
        choose,
        (tf.constant(0), is_free_TBN, nothing_TBD, nothing_TBD),
        (tf.TensorShape([]), any_size, any_size, any_size),
    )
    return list(zip(tf.unstack(is_right), tf.unstack(is_ignored), strict=True))


def _compute_covered_shares(boxes: tf.Tensor, regions: tf.Tensor) -> tf.Tensor:
    """Returns the share of each box [B, D, 4] inside of each region [B, N, 4]: [B, D, N]."""
    covered = compute_intersections(boxes[:, :, None], regions[:, None])
    return tf.math.divide_no_nan(covered, compute_areas(boxes)[:, :, None])


def compute_metric(name: str, counts: np.ndarray) -> float:
    """Returns one of COCO's metrics: the mean over classes with boxes, and 0 without any.

    A precision differs from COCO's only because all detections in one range of scores are one point
    of the curve. A recall does not differ. `counts` is the sum of the results of
    `count_detections`.
    """
    metric, counts = _METRICS[name], np.asarray(counts, np.float64)
    found = []
    for row in counts[counts[:, -1] > 0]:
        if metric.limit:
            found.append(row[0] / row[-1] / len(metric.overlaps))
        else:
            # From the highest range of scores to the lowest.
            by_range = row[:-1].reshape(-1, 2, _NUM_RANGES)[..., ::-1].cumsum(axis=-1)
            curves = [read_precisions(right, right + wrong, row[-1]) for right, wrong in by_range]
            found.append(np.mean([curve.mean() for curve in curves]))
    return float(np.mean(found)) if found else 0.0


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


def compute_focal_losses(
    logits: tf.Tensor,
    is_positive: tf.Tensor,
    positive_weights: tf.Tensor | float,
    negative_weights: tf.Tensor | float,
    gamma: float = 2.0,
) -> tf.Tensor:
    """Returns the focal loss of each logit (Lin et al. 2017, equation 5)."""
    # Not 1 - sigmoid, whose power has no gradient where it is rounded to 0.
    of_positive, of_negative = tf.sigmoid(-logits), tf.sigmoid(logits)
    if gamma == 0:
        of_positive = of_negative = tf.ones_like(logits)
    positive_losses = positive_weights * of_positive**gamma * tf.math.softplus(-logits)
    negative_losses = negative_weights * of_negative**gamma * tf.math.softplus(logits)
    return tf.where(is_positive, positive_losses, negative_losses)
