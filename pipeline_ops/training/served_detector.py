"""A detector for serving: its outputs are boxes, after decoding and non-maximum suppression.

Boxes are fractions of the height and width of the request's image, of any size, also where the
model sees it with bars or only its middle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from pipeline_ops.artifacts.dataset import STRETCH, Geometry
from pipeline_ops.models.detection import Head
from pipeline_ops.training.served_images import ServedImages


class ServedDetector(ServedImages):
    """A detector for serving.

    Args:
      model: As in `ServedImages`.
      image_shape: H, W, C.
      head: The head that decodes the model's outputs.
      geometry: As in `ServedImages`.
    """

    def __init__(
        self,
        model: tf.Module,
        image_shape: tuple[int, int, int],
        head: Head,
        geometry: Geometry = STRETCH,
    ):
        super().__init__(model, image_shape, geometry)
        self._head = head
        self.portable = tf.function(
            self._predict_portably, input_signature=self.images.input_signature
        )

    @property
    def signatures(self) -> dict[str, Callable[..., Any]]:
        """The signatures of `ServedImages`, and `portable`.

        `portable` is like `images`, but uses only operations that other formats have, too. Exports
        to those formats are made from it.
        """
        return super().signatures | {"portable": self.portable}

    def _predict_encoded(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns boxes in fractions of the request's images, cut at their edges."""
        decoded = self.decode(image_bytes)
        detections = dict(self.images(decoded["images"]))
        if self._geometry.mode == "stretch":
            return detections
        low_N12, high_N12 = tf.split(decoded["windows"][:, None], 2, axis=-1)
        extent = tf.concat([high_N12 - low_N12] * 2, axis=-1)
        boxes = tf.concat([low_N12] * 2, axis=-1) + detections["boxes"] * extent
        is_padding = detections["scores"][..., None] <= 0
        return detections | {"boxes": tf.where(is_padding, 0.0, tf.clip_by_value(boxes, 0.0, 1.0))}

    def _predict(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._head.detect(self.model(images, training=False))._asdict()

    def _predict_portably(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._head.detect_portably(self.model(images, training=False))._asdict()
