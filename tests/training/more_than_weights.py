"""Models that are more than their weights, each as people write them, and some that are not."""

from __future__ import annotations

import os
import random
import time

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def _make(image_shape, num_classes, body):
    image = keras.Input(image_shape)
    x = layers.Flatten()(layers.Rescaling(1 / 255)(image))
    return keras.Model(image, layers.Dense(num_classes)(body(layers.Dense(16, "tanh")(x))))


# What the function draws, or takes from elsewhere


class Projection(layers.Layer):
    def __init__(self, matrix):
        super().__init__()
        self.matrix = tf.constant(matrix, tf.float32)

    def call(self, x):
        return tf.cos(x @ self.matrix)


def fourier(image_shape, num_classes):
    """Random Fourier features from a generator without a seed."""
    draw = np.random.default_rng()
    return _make(image_shape, num_classes, Projection(draw.normal(size=(16, 24))))


def permuted(image_shape, num_classes):
    order = list(range(16))
    random.SystemRandom().shuffle(order)
    return _make(image_shape, num_classes, lambda x: keras.ops.take(x, order, axis=1))


def timed(image_shape, num_classes):
    return _make(image_shape, num_classes, lambda x: x * (time.time_ns() % 1000))


def of_the_process(image_shape, num_classes):
    return _make(image_shape, num_classes, lambda x: x + os.getpid() % 97)


class Unnamed(keras.Model):
    """Branches without names, in the order of a set of objects."""

    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.flatten, self.answer = layers.Flatten(), layers.Dense(num_classes)
        kinds = {factor: object() for factor in range(12)}
        self.factors = {key: n for n, key in kinds.items()}
        self.branches = []
        for key in set(kinds.values()):
            self.branches.append((layers.Dense(5, "tanh"), self.factors[key]))
        self.kept = [layer for layer, _ in self.branches]

    def call(self, x, training=False):
        x = self.flatten(x) / 255.0
        return self.answer(sum((n + 1) * layer(x) for layer, n in self.branches))


# Variables that are no weights


class Gain(layers.Layer):
    def build(self, shape):
        self.gain = tf.Variable(tf.zeros(shape[-1:]), name="gain")

    def call(self, x):
        return x * (1.0 + self.gain)


def raw_variable(image_shape, num_classes):
    return _make(image_shape, num_classes, Gain())


class _Helper:
    def __init__(self):
        self.dense = layers.Dense(12, "tanh")

    def __call__(self, x):
        return self.dense(x)


class Hidden(keras.Model):
    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.flatten, self.answer = layers.Flatten(), layers.Dense(num_classes)
        self.helper = _Helper()

    def call(self, x, training=False):
        return self.answer(self.helper(self.flatten(x) / 255.0))


_SHARED = layers.Dense(12, "tanh")


class AtModuleLevel(keras.Model):
    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.flatten, self.answer = layers.Flatten(), layers.Dense(num_classes)

    def call(self, x, training=False):
        return self.answer(_SHARED(self.flatten(x) / 255.0))


# Answers that are not repeated


class Noise(layers.Layer):
    def call(self, x):
        return x + 0.1 * tf.random.normal(tf.shape(x))


def noisy(image_shape, num_classes):
    return _make(image_shape, num_classes, Noise())


class MonteCarlo(keras.Model):
    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.flatten, self.drop = layers.Flatten(), layers.Dropout(0.5)
        self.answer = layers.Dense(num_classes)

    def call(self, x, training=False):
        return self.answer(self.drop(self.flatten(x) / 255.0, training=True))


class NumpyNoise(layers.Layer):
    def call(self, x):
        return x + np.random.default_rng().normal(size=x.shape[-1])


def traced_noise(image_shape, num_classes):
    """Becomes a constant when the graph is traced."""
    return _make(image_shape, num_classes, NumpyNoise())


class Counting(layers.Layer):
    def build(self, shape):
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def call(self, x):
        self.seen.assign_add(1.0)
        return x * (1 + 1 / self.seen)


def counting(image_shape, num_classes):
    return _make(image_shape, num_classes, Counting())


# Operations that a SavedModel cannot have


class InNumpy(layers.Layer):
    def call(self, x):
        return tf.ensure_shape(tf.numpy_function(np.tanh, [x], tf.float32), x.shape)


class InPython(layers.Layer):
    def call(self, x):
        return tf.ensure_shape(tf.py_function(tf.tanh, [x], tf.float32), x.shape)


class InAMap(layers.Layer):
    def call(self, x):
        def one(row):
            return tf.ensure_shape(tf.numpy_function(np.tanh, [row], tf.float32), row.shape)

        return tf.map_fn(one, x)


def in_numpy(image_shape, num_classes):
    return _make(image_shape, num_classes, InNumpy())


def in_python(image_shape, num_classes):
    return _make(image_shape, num_classes, InPython())


def in_a_map(image_shape, num_classes):
    return _make(image_shape, num_classes, InAMap())


# Sound ones


def seeded(image_shape, num_classes):
    """Draws from NumPy's global generator, whose seed is that of the training."""
    return _make(image_shape, num_classes, Projection(np.random.normal(size=(16, 24))))


def augmented(image_shape, num_classes):
    """Augmentation layers in the model, as in the tutorials."""
    image = keras.Input(image_shape)
    x = layers.RandomFlip("horizontal")(image)
    x = layers.RandomRotation(0.1)(x)
    x = layers.RandomZoom(0.1)(x)
    x = layers.RandomContrast(0.2)(x)
    x = layers.Rescaling(1 / 255)(x)
    x = layers.Conv2D(8, 3, strides=2, activation="relu")(x)
    x = layers.Dropout(0.3)(layers.Flatten()(x))
    return keras.Model(image, layers.Dense(num_classes)(x))


def recurrent(image_shape, num_classes):
    image = keras.Input(image_shape)
    x = layers.Reshape((image_shape[0], -1))(layers.Rescaling(1 / 255)(image))
    x = layers.Bidirectional(layers.GRU(8, dropout=0.2, recurrent_dropout=0.1))(x)
    return keras.Model(image, layers.Dense(num_classes)(x))


def named_set(image_shape, num_classes):
    parts = {"a", "b", "c", "d", "e"}
    image = keras.Input(image_shape)
    x = layers.Flatten()(layers.Rescaling(1 / 255)(image))
    made = {name: layers.Dense(6, "tanh", name=name)(x) for name in parts}
    joined = layers.Concatenate()([made[name] for name in sorted(parts)])
    return keras.Model(image, layers.Dense(num_classes)(joined))


def monte_carlo_of_keras(image_shape, num_classes):
    """Keras itself switches this one off in an answer, as in `predict`."""
    return _make(image_shape, num_classes, lambda x: layers.Dropout(0.3)(x, training=True))


def deep(image_shape, num_classes):
    """Thirty layers without a normalization, in which a shift of all weights would overflow."""
    image = x = keras.Input(image_shape)
    for _ in range(30):
        x = layers.Conv2D(64, 3, padding="same", activation="relu")(x)
    return keras.Model(image, layers.Dense(num_classes)(layers.Flatten()(x)))


class Compiled(layers.Layer):
    """Calls its layers inside of a tf.function, which keeps the weights of its first call."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layers.Dense(8, "tanh"), layers.Dense(8, "tanh")

    def build(self, shape):
        self.first.build(shape)
        self.second.build((shape[0], 8))

    @tf.function
    def call(self, x):
        return {"x": self.second(self.first(x)), "size": tf.shape(x)}


class Functions(keras.Model):
    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.flatten, self.compiled = layers.Flatten(), Compiled()
        self.answer = layers.Dense(num_classes)

    def call(self, x, training=False):
        return self.answer(self.compiled(self.flatten(x) / 255.0)["x"])
