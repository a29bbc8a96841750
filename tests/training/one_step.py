"""Models whose step on several devices, or with sharded weights, may be another one."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers


def _make(image_shape, num_classes, body):
    image = keras.Input(image_shape)
    x = layers.Dense(12, "tanh")(layers.Flatten()(layers.Rescaling(1 / 255)(image)))
    return keras.Model(image, layers.Dense(num_classes, name="answer")(body(x)))


class Tap(layers.Layer):
    kept = None

    def call(self, x):
        self.kept = x
        return x


class Skipping(keras.Model):
    """Keeps a tensor in an attribute until a later layer needs it."""

    def __init__(self, image_shape, num_classes, normalization=True):
        super().__init__()
        self.scale, self.flatten = layers.Rescaling(1 / 255), layers.Flatten()
        self.first, self.second = layers.Dense(12, "tanh"), layers.Dense(12, "tanh")
        self.tap, self.answer = Tap(), layers.Dense(num_classes)
        self.between = layers.BatchNormalization() if normalization else layers.Identity()

    def call(self, x, training=False):
        x = self.tap(self.first(self.flatten(self.scale(x))))
        x = self.second(self.between(x, training=training))
        return self.answer(x * self.tap.kept)


def penalized(image_shape, num_classes, regularizer="l2"):
    """Keras's own layers alone."""

    def body(x):
        x = layers.Dense(8, "tanh", activity_regularizer=regularizer)(x)
        return layers.Dense(8, "tanh")(layers.BatchNormalization()(x))

    return _make(image_shape, num_classes, body)


def unpenalized(image_shape, num_classes):
    return penalized(image_shape, num_classes, None)


class Recomputing(layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner = layers.Dense(12, "tanh")

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x):
        return tf.recompute_grad(self.inner)(x)


def recomputing(image_shape, num_classes):
    return _make(image_shape, num_classes, Recomputing())


class Clipped(layers.Layer):
    """Has a gradient of its own, with the weight as an argument or only read inside."""

    def __init__(self, is_given: bool):
        super().__init__()
        self.is_given = is_given

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 12), name="kernel")

    def call(self, x):
        kernel = tf.convert_to_tensor(self.kernel)

        @tf.custom_gradient
        def multiply(values, weight):
            def differentiate(upstream):
                clipped = tf.clip_by_value(upstream, -1e-3, 1e-3)
                return clipped @ tf.transpose(weight), tf.transpose(values) @ upstream

            return values @ weight, differentiate

        if self.is_given:
            return multiply(x, kernel)

        @tf.custom_gradient
        def multiply_hidden(values):
            weight = self.kernel.value

            def differentiate(upstream, variables=None):
                own = upstream @ tf.transpose(weight)
                return (own, [tf.transpose(values) @ upstream]) if variables else own

            return values @ weight, differentiate

        return multiply_hidden(x)


def clipped(image_shape, num_classes):
    return _make(image_shape, num_classes, Clipped(is_given=True))


def hiding(image_shape, num_classes):
    return _make(image_shape, num_classes, Clipped(is_given=False))


def dropping(image_shape, num_classes):
    return _make(
        image_shape, num_classes, lambda x: layers.BatchNormalization()(layers.Dropout(0.5)(x))
    )


def spectral(image_shape, num_classes):
    return _make(image_shape, num_classes, layers.SpectralNormalization(layers.Dense(12, "tanh")))


class Shaking(layers.Layer):
    def call(self, x, training=False):
        return x + tf.random.normal(tf.shape(x), stddev=0.1) if training else x


def shaking(image_shape, num_classes):
    """Draws with TensorFlow's generator, which repeats no number, and may."""
    return _make(image_shape, num_classes, Shaking())


class Codes(layers.Layer):
    """Assigns the mean of its batch to a weight."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def build(self, shape):
        self.codes = self.add_weight(shape=shape[-1:], name="codes", **self.options)

    def call(self, x, training=False):
        if training:
            self.codes.assign(0.9 * self.codes + 0.1 * tf.reduce_mean(x, 0))
        return x + tf.tanh(self.codes.value)


def coding(image_shape, num_classes):
    return _make(image_shape, num_classes, Codes(trainable=True))


def summing(image_shape, num_classes):
    return _make(image_shape, num_classes, Codes(trainable=False, aggregation="sum"))
