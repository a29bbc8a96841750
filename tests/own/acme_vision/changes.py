"""Changes of training images as a user of Trainyard writes them, right and wrong."""

from __future__ import annotations

import random

import keras
import numpy as np
import tensorflow as tf

_layer = keras.layers.RandomBrightness(0.5, seed=1)


def jitter(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Adds noise, and inverts every second image."""
    image += tf.random.stateless_normal(tf.shape(image), seed, stddev=10.0)
    if tf.random.stateless_uniform([], seed + 1) < 0.5:
        image = 255 - image
    return image


def in_numpy(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Erases a square, in Python, with a generator that its seed begins."""

    def erase(image: np.ndarray, seed: np.ndarray) -> np.ndarray:
        top, left = np.random.default_rng(seed).integers(0, image.shape[0] - 3, 2)
        image = image.copy()
        image[top : top + 4, left : left + 4] = 0
        return image

    return tf.ensure_shape(tf.numpy_function(erase, [image, seed], tf.float32), image.shape)


def stateful(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return tf.image.random_brightness(image, 50.0)


def in_python(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return image * random.uniform(0.5, 1.0)


def with_numpy(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return tf.numpy_function(lambda x: x * np.float32(np.random.rand()), [image], tf.float32)


def with_a_layer(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return _layer(image, training=True)


def smaller(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return image[1:, 1:]


def whole_numbers(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return tf.cast(image, tf.uint8)


def scaled(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return image / 255


def undefined(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return tf.math.log(-image)


def raising(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return image + tf.zeros([2, 2])


def failing(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    tf.debugging.assert_less(image, 3.0)
    return image


def without_seed(image: tf.Tensor) -> tf.Tensor:
    return image


def nothing(image: tf.Tensor, seed: tf.Tensor) -> None:
    return None


def pair(image: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return image, image


not_callable = 3
