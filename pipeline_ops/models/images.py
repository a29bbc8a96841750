"""The images of serialised examples, as tensors of one shape."""

from __future__ import annotations

import tensorflow as tf


def decode_images(encoded_b: tf.Tensor, shape: tuple[int, int, int]) -> tf.Tensor:
    """Returns uint8 [b, H, W, C] of the bytes of image files, string [b]."""

    def decode(encoded: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_image(encoded, channels=shape[-1], expand_animations=False)
        return tf.ensure_shape(image, shape)

    return tf.map_fn(decode, encoded_b, fn_output_signature=tf.TensorSpec(shape, tf.uint8))
