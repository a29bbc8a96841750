"""A detector for serving: its outputs are boxes, after decoding and non-maximum suppression.

Boxes are fractions of the height and width of the request's image, of any size, because the image
is stretched to the model's input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from pipeline_ops.models.detection import Head
from pipeline_ops.training.served_images import ServedImages


class ServedDetector(ServedImages):
    """A detector for serving.

    Args:
      model: As in `ServedImages`.
      image_shape: H, W, C.
      head: The head that decodes the model's outputs.
    """

    def __init__(self, model: tf.Module, image_shape: tuple[int, int, int], head: Head):
        super().__init__(model, image_shape)
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

    def _predict(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._head.detect(self.model(images, training=False))._asdict()

    def _predict_portably(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._head.detect_portably(self.model(images, training=False))._asdict()
