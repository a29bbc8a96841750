"""Object detection: boxes with classes for each image.

The task is the same for every detector. The model's head (`centers.py`, `anchor_head.py`)
interprets the outputs. Boxes reach the step unchanged, a few hundred bytes for an image, and the
head makes its targets there. On a GPU that is cheaper than making the maps on the CPU and copying
them.

The loss counts boxes, not examples. The sums over all workers are divided by the head's count,
because an image with one object and one with a hundred must not weigh the same.
"""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf

from pipeline_ops.artifacts.dataset import BOX_EDGES, BOX_IS_CROWD, BOX_LABEL, ENCODED
from pipeline_ops.models.boxes import Boxes, Detections, suppress, suppress_portably
from pipeline_ops.models.images import decode_images
from pipeline_ops.models.task import BatchSums

_FEATURES = {
    ENCODED: tf.io.FixedLenFeature([], tf.string),
    **{edge: tf.io.RaggedFeature(tf.float32) for edge in BOX_EDGES},
    BOX_LABEL: tf.io.RaggedFeature(tf.int64),
    BOX_IS_CROWD: tf.io.RaggedFeature(tf.int64),
}


class Head(Protocol):
    """The interpretation of a detector's outputs.

    Attributes:
      num_classes: the number of classes in the data set.
      metrics: the names of the sums between the loss and the count.
      max_boxes: the number of boxes to which the labels of every batch are padded. An image with
          more boxes is an error. None pads to the image with the most boxes.
    """

    num_classes: int
    metrics: tuple[str, ...]
    max_boxes: int | None

    def compute_sums(self, outputs: Any, labels: Boxes) -> tf.Tensor:
        """Returns float32 [2 + metrics]: the sums of the loss and of each metric, and the count."""
        ...

    def find_candidates(self, outputs: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns boxes, scores and classes, as `suppress` takes them."""
        ...

    def detect(self, outputs: Any) -> Detections:
        """Returns the best candidates. Overlapping ones of a class are suppressed."""
        return suppress(*self.find_candidates(outputs), self.num_classes)

    def detect_portably(self, outputs: Any) -> Detections:
        """Does the same as `detect`, with operations that TFLite and ONNX have."""
        return suppress_portably(*self.find_candidates(outputs))


class Detection:
    """The task of a model whose outputs a head interprets.

    Args:
      image_shape: height, width, channels.
      head: the model's head.
    """

    counts_examples = False
    evaluation_batch_size = 32

    def __init__(self, image_shape: tuple[int, int, int], head: Head):
        self._image_shape, self.head, self.metrics = image_shape, head, head.metrics

    def parse(self, serialized_b: tf.Tensor) -> tuple[tf.Tensor, Boxes]:
        """Returns images uint8 [b, H, W, C] and their boxes.

        The boxes are padded to the number of the image with the most boxes, or to the head's
        `max_boxes`.
        """
        features = tf.io.parse_example(serialized_b, _FEATURES)
        images_bHWC = decode_images(features[ENCODED], self._image_shape)
        shape = [None, self._check_max_boxes(features[BOX_LABEL])]
        corners = tf.stack([features[edge].to_tensor(shape=shape) for edge in BOX_EDGES], axis=-1)
        classes = tf.cast(features[BOX_LABEL].to_tensor(-1, shape=shape), tf.int32)
        return images_bHWC, Boxes(
            corners, classes, features[BOX_IS_CROWD].to_tensor(shape=shape) > 0
        )

    def _check_max_boxes(self, labels: tf.RaggedTensor) -> int | None:
        max_boxes = self.head.max_boxes
        if max_boxes is not None:
            max_found = tf.reduce_max(
                tf.concat([labels.row_lengths(), tf.zeros([1], labels.row_lengths().dtype)], 0)
            )
            message = (
                f"train.model_parameters.max_boxes is {max_boxes}, "
                "and an image has more boxes. Raise it"
            )
            tf.debugging.assert_less_equal(max_found, tf.cast(max_boxes, max_found.dtype), message)
        return max_boxes

    def compute_batch_sums(self, outputs: Any, labels: Boxes, training: bool) -> BatchSums:
        sums = self.head.compute_sums(outputs, labels)
        return BatchSums(sums[0], sums[1:-1], sums[-1])
