"""Object detection: boxes with classes for each image.

The task is the same for every detector; what its outputs mean is the model's head (`centers.py`, `anchor_head.py`). Boxes travel to
the step as they are, a few hundred bytes for an image, and the head makes its targets there: on a GPU that is cheaper than to
make the maps on the CPU and to copy them.

A box counts in the loss, not an example: `batch_sums` divides by what the head counts, over all workers, because an image with one
object and one with a hundred must not weigh the same.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from pipeline_ops.artifacts.dataset import BOX_IS_CROWD, BOX_LABEL, BOX_XMAX, BOX_XMIN, BOX_YMAX, BOX_YMIN, ENCODED
from pipeline_ops.models.boxes import Boxes, Detections

_EDGES = (BOX_YMIN, BOX_XMIN, BOX_YMAX, BOX_XMAX)
_FEATURES = {
    ENCODED: tf.io.FixedLenFeature([], tf.string),
    **{edge: tf.io.RaggedFeature(tf.float32) for edge in _EDGES},
    BOX_LABEL: tf.io.RaggedFeature(tf.int64),
    BOX_IS_CROWD: tf.io.RaggedFeature(tf.int64),
}


class Head(Protocol):
    """What a detector's outputs mean. `metrics` names the sums between the loss and the count. With `max_boxes`, labels have room for so many
    boxes in every batch, and an image with more is an error; None: for as many as the image with the most has."""

    metrics: tuple[str, ...]
    max_boxes: int | None

    def sums(self, outputs: Any, labels: Boxes) -> tf.Tensor:
        """As `Task.batch_sums`; the last one is what the others are divided by."""
        ...

    def detect(self, outputs: Any) -> Detections: ...


@runtime_checkable
class PortableHead(Head, Protocol):
    """A head whose detections can also be made of operations that TFLite and ONNX have."""

    def detect_portably(self, outputs: Any) -> Detections: ...


class Detection:
    """The task of a model whose outputs a head understands.

    Args:
      image_shape: height, width, channels.
      head: of the model.
    """

    counts_examples = False
    evaluation_batch = 32

    def __init__(self, image_shape: tuple[int, int, int], head: Head):
        self._image_shape, self._head, self.metrics = image_shape, head, head.metrics

    def parse(self, serialized_b: tf.Tensor) -> tuple[tf.Tensor, Boxes]:
        """images uint8 [b, H, W, C] and their boxes, as many for each image as the one with the most has, or as the head has room for."""
        features = tf.io.parse_example(serialized_b, _FEATURES)
        decode = lambda encoded: tf.ensure_shape(  # noqa: E731
            tf.io.decode_image(encoded, channels=self._image_shape[-1], expand_animations=False), self._image_shape)
        images_bHWC = tf.map_fn(decode, features[ENCODED], fn_output_signature=tf.TensorSpec(self._image_shape, tf.uint8))
        shape = [None, self._room(features[BOX_LABEL])]
        corners = tf.stack([features[edge].to_tensor(shape=shape) for edge in _EDGES], axis=-1)
        classes = tf.cast(features[BOX_LABEL].to_tensor(-1, shape=shape), tf.int32)
        return images_bHWC, Boxes(corners, classes, features[BOX_IS_CROWD].to_tensor(shape=shape) > 0)

    def _room(self, labels: tf.RaggedTensor) -> int | None:
        room = self._head.max_boxes
        if room is not None:
            most = tf.reduce_max(tf.concat([labels.row_lengths(), tf.zeros([1], labels.row_lengths().dtype)], 0))
            rule = f"train.model_parameters.max_boxes is {room}, and an image has more boxes; raise it"
            tf.debugging.assert_less_equal(most, tf.cast(room, most.dtype), rule)
        return room

    def batch_sums(self, outputs: Any, labels: Boxes, training: bool) -> tf.Tensor:
        """The head's: of the loss, of its metrics, and the number that they are divided by."""
        return self._head.sums(outputs, labels)
