"""A model with too little memory."""

from __future__ import annotations

import tensorflow as tf
from keras import Input, Model, Sequential, layers


class LittleMemory(layers.Layer):
    """Lets so many images at once through in training, and has no memory for more."""

    def __init__(self, num_images: int):
        super().__init__()
        self._num_images = num_images

    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        if not training:
            return images

        def check(images: tf.Tensor) -> tf.Tensor:
            if len(images) > self._num_images:
                raise MemoryError(f"OOM when allocating {len(images)} images")
            return images

        checked = tf.py_function(check, [images], images.dtype)
        return tf.ensure_shape(checked, images.shape)


def build(image_shape: tuple[int, int, int], num_classes: int, num_images: int) -> Model:
    return Sequential(
        [Input(image_shape), LittleMemory(num_images), layers.Flatten(), layers.Dense(num_classes)]
    )
