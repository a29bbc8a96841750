"""The images of shards, decoded as a part of a graph."""

from __future__ import annotations

import tensorflow as tf


def decode_images(encoded_b: tf.Tensor, shape: tuple[int, int, int]) -> tf.Tensor:
    """Returns uint8 [b, H, W, C] of the bytes of image files, string [b]."""

    def decode(encoded: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(decode_image(encoded, shape[-1]), shape)

    return tf.map_fn(decode, encoded_b, fn_output_signature=tf.TensorSpec(shape, tf.uint8))


def decode_image(encoded: tf.Tensor, channels: int) -> tf.Tensor:
    """Returns uint8 [H, W, C] of the bytes of a JPEG or PNG file in a shard.

    The operation takes PNG as well. Its accurate inverse cosine transform is that of the stages.
    """
    return tf.io.decode_jpeg(encoded, channels, dct_method="INTEGER_ACCURATE")
