"""A model with too little memory."""

from __future__ import annotations

import tensorflow as tf
from keras import Input, Model, Sequential, layers


class LittleMemory(layers.Layer):
    """Lets so many images at once through, and has no memory for more."""

    def __init__(self, num_images: int, num_evaluated: int):
        super().__init__()
        self._num_images, self._num_evaluated = num_images, num_evaluated

    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        limit = self._num_images if training else self._num_evaluated

        def check(images: tf.Tensor) -> tf.Tensor:
            if len(images) > limit:
                raise MemoryError(f"OOM when allocating {len(images)} images")
            return images

        checked = tf.py_function(check, [images], images.dtype)
        return tf.ensure_shape(checked, images.shape)


def build(
    image_shape: tuple[int, int, int],
    num_classes: int,
    num_images: int,
    num_evaluated: int = 1000,
) -> Model:
    memory = LittleMemory(num_images, num_evaluated)
    return Sequential([Input(image_shape), memory, layers.Flatten(), layers.Dense(num_classes)])
