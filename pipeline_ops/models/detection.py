"""Object detection: boxes with classes for each image.

The task is the same for every detector. The model's head (`centers.py`, `anchor_head.py`)
interprets the outputs. Boxes reach the step unchanged, a few hundred bytes for an image, and the
head makes its targets there. On a GPU that is cheaper than making the maps on the CPU and copying
them.

The loss counts boxes, not examples. The sums of `batch_sums` are divided by the head's count, over
all workers, because an image with one object and one with a hundred must not weigh the same.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from pipeline_ops.artifacts.dataset import (
    BOX_IS_CROWD,
    BOX_LABEL,
    BOX_XMAX,
    BOX_XMIN,
    BOX_YMAX,
    BOX_YMIN,
    ENCODED,
)
from pipeline_ops.models.boxes import Boxes, Detections

_EDGES = (BOX_YMIN, BOX_XMIN, BOX_YMAX, BOX_XMAX)
_FEATURES = {
    ENCODED: tf.io.FixedLenFeature([], tf.string),
    **{edge: tf.io.RaggedFeature(tf.float32) for edge in _EDGES},
    BOX_LABEL: tf.io.RaggedFeature(tf.int64),
    BOX_IS_CROWD: tf.io.RaggedFeature(tf.int64),
}


class Head(Protocol):
    """The interpretation of a detector's outputs.

    Attributes:
      metrics: the names of the sums between the loss and the count.
      max_boxes: the number of boxes that labels have room for in every batch. An image with more
          boxes is an error. None makes room for the image with the most boxes.
    """

    metrics: tuple[str, ...]
    max_boxes: int | None

    def sums(self, outputs: Any, labels: Boxes) -> tf.Tensor:
        """Returns the sums of `Task.batch_sums`. The last one divides the others."""
        ...

    def detect(self, outputs: Any) -> Detections: ...


@runtime_checkable
class PortableHead(Head, Protocol):
    """A head that can also detect with operations that TFLite and ONNX have."""

    def detect_portably(self, outputs: Any) -> Detections: ...


class Detection:
    """The task of a model whose outputs a head interprets.

    Args:
      image_shape: height, width, channels.
      head: the model's head.
    """

    counts_examples = False
    evaluation_batch = 32

    def __init__(self, image_shape: tuple[int, int, int], head: Head):
        self._image_shape, self._head, self.metrics = image_shape, head, head.metrics

    def parse(self, serialized_b: tf.Tensor) -> tuple[tf.Tensor, Boxes]:
        """Returns images uint8 [b, H, W, C] and their boxes.

        All images have room for as many boxes as the image with the most boxes has, or as the
        head's `max_boxes`.
        """
        features = tf.io.parse_example(serialized_b, _FEATURES)
        decode = lambda encoded: tf.ensure_shape(  # noqa: E731
            tf.io.decode_image(encoded, channels=self._image_shape[-1], expand_animations=False),
            self._image_shape,
        )
        images_bHWC = tf.map_fn(
            decode,
            features[ENCODED],
            fn_output_signature=tf.TensorSpec(self._image_shape, tf.uint8),
        )
        shape = [None, self._room(features[BOX_LABEL])]
        corners = tf.stack([features[edge].to_tensor(shape=shape) for edge in _EDGES], axis=-1)
        classes = tf.cast(features[BOX_LABEL].to_tensor(-1, shape=shape), tf.int32)
        return images_bHWC, Boxes(
            corners, classes, features[BOX_IS_CROWD].to_tensor(shape=shape) > 0
        )

    def _room(self, labels: tf.RaggedTensor) -> int | None:
        room = self._head.max_boxes
        if room is not None:
            most = tf.reduce_max(
                tf.concat([labels.row_lengths(), tf.zeros([1], labels.row_lengths().dtype)], 0)
            )
            rule = (
                f"train.model_parameters.max_boxes is {room}, and an image has more boxes; raise it"
            )
            tf.debugging.assert_less_equal(most, tf.cast(room, most.dtype), rule)
        return room

    def batch_sums(self, outputs: Any, labels: Boxes, training: bool) -> tf.Tensor:
        """Returns the head's sums: of the loss and of its metrics, and their divisor."""
        return self._head.sums(outputs, labels)
