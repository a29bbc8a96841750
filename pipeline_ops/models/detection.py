"""Object detection: boxes with classes for each image. Common parts of all detectors.

The task is the same for every detector. The model's head (`CenterHead`, `AnchorHead`) interprets
the outputs. The step gets the boxes themselves, a few hundred bytes for an image, and the head
makes its targets from them. On a GPU that is cheaper than making target maps on the CPU and copying
them.

The loss is a mean over boxes, not over examples: its sum over all workers is divided by the head's
count. Otherwise an image with one object would weigh as much as one with a hundred.

Legend: B batch, K candidates, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from pipeline_ops.contract.dataset import BOX_EDGES, BOX_IS_CROWD, BOX_LABEL, ENCODED
from pipeline_ops.contract.results import COCO_DETECTIONS, choose_num_counted
from pipeline_ops.errors import ConfigError
from pipeline_ops.input.images import decode_images
from pipeline_ops.models.boxes import (
    SAME_OBJECT_IOU,
    Boxes,
    Detections,
    suppress,
    suppress_portably,
)
from pipeline_ops.models.coco_counts import compute_metric, count_detections, get_num_columns
from pipeline_ops.models.task import BatchSums, count_false

_FEATURES = {
    ENCODED: tf.io.FixedLenFeature([], tf.string),
    **{edge: tf.io.RaggedFeature(tf.float32) for edge in BOX_EDGES},
    BOX_LABEL: tf.io.RaggedFeature(tf.int64),
    BOX_IS_CROWD: tf.io.RaggedFeature(tf.int64),
}

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


def check_that(is_valid: bool, parameter: str, rule: str, value: Any) -> None:
    """Raises ConfigError with the rule if a parameter of a detector is not valid."""
    if not is_valid:
        raise ConfigError(f"train.model_parameters.{parameter} must be {rule}, got {value}")


def check_max_detections(value: int | None) -> int:
    """Returns the parameter `max_detections`, or COCO's 100. Raises ConfigError."""
    check_that(value is None or value >= 1, "max_detections", "at least 1", value)
    return COCO_DETECTIONS if value is None else value


def check_multiple(name: str, image_shape: tuple[int, int, int], stride: int) -> None:
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
        self._ends = np.cumsum([head.num_classes * get_num_columns(name) for name in gate_metrics])
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
