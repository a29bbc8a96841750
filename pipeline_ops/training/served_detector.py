"""A detector for serving: its outputs are boxes, after decoding and non-maximum suppression.

Boxes are fractions of the height and width of the request's image, of any size, because the image
is stretched to the model's input.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from pipeline_ops.models.detection import Head, PortableHead
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
        self.portable = None
        if isinstance(head, PortableHead):
            self.portable = tf.function(
                self._answer_portably, input_signature=self.images.input_signature
            )

    @property
    def signatures(self) -> dict[str, Callable]:
        """The signatures of `ServedImages`, and `portable` if the head supports it.

        `portable` is like `images`, but uses only operations that other formats have, too. Exports
        to those formats are made from it.
        """
        return super().signatures | ({"portable": self.portable} if self.portable else {})

    def _answer(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._head.detect(self.model(images, training=False))._asdict()

    def _answer_portably(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._head.detect_portably(self.model(images, training=False))._asdict()
