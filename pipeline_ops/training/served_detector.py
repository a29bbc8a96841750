"""A detector as it is served: boxes, with decoding and the suppression of double ones inside.

Boxes are fractions of the height and width of the image that was sent, whatever its size: it is stretched to what the model takes.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from pipeline_ops.models.detection import Head, PortableHead
from pipeline_ops.training.served_images import ServedImages


class ServedDetector(ServedImages):
    """Args: as ServedImages, and the head that knows what the model's outputs mean."""

    def __init__(self, model: tf.Module, image_shape: tuple[int, int, int], head: Head):
        super().__init__(model, image_shape)
        self._head = head
        self.portable = None
        if isinstance(head, PortableHead):
            self.portable = tf.function(self._answer_portably, input_signature=self.images.input_signature)

    @property
    def signatures(self) -> dict[str, Callable]:
        """Those of all images, and `portable`, where the head has it: as `images`, of what other formats have, too; these are made of it."""
        return super().signatures | ({"portable": self.portable} if self.portable else {})

    def _answer(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._head.detect(self.model(images, training=False))._asdict()

    def _answer_portably(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._head.detect_portably(self.model(images, training=False))._asdict()
