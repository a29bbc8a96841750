"""Models that end in probabilities and in logits, and losses of either."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers


def make_net(shape, size, end):
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Rescaling(1 / 255),
            layers.Flatten(),
            layers.Dense(12, activation="relu"),
            layers.Dense(size, activation=end),
        ]
    )


def softmax(image_shape, num_classes):
    return make_net(image_shape, num_classes, "softmax")


def logits(image_shape, num_classes):
    return make_net(image_shape, num_classes, None)


def sigmoid(image_shape, num_classes):
    return make_net(image_shape, 1, "sigmoid")


def confidence(labels, outputs):
    return tf.gather(outputs, tf.cast(labels, tf.int32), batch_dims=1)


def focal(labels, outputs, gamma=2.0):
    p = tf.clip_by_value(confidence(labels, outputs), 1e-7, 1 - 1e-7)
    return -((1 - p) ** gamma) * tf.math.log(p)


def cross_entropy(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs)


def of_logits(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def squared(labels, outputs):
    return keras.losses.mean_squared_error(tf.one_hot(labels, outputs.shape[-1]), outputs)


def hinge(labels, outputs):
    return keras.losses.categorical_hinge(tf.one_hot(labels, outputs.shape[-1]), outputs)


def logarithm(labels, outputs):
    return -tf.math.log(confidence(labels, outputs))


def binary(labels, outputs):
    return keras.losses.binary_crossentropy(labels, outputs)


def binary_of_logits(labels, outputs):
    return keras.losses.binary_crossentropy(labels, outputs, from_logits=True)


class Focal(keras.losses.Loss):
    """A focal loss for whole numbers as labels."""

    def __init__(self, gamma=2.0, name="focal"):
        super().__init__(name=name)
        self.gamma = gamma

    def call(self, y_true, y_pred):
        return focal(y_true, y_pred, self.gamma)


class OneHotFocal(Focal):
    """A focal loss for labels of to_categorical."""

    def call(self, y_true, y_pred):
        p = tf.clip_by_value(y_pred, 1e-7, 1 - 1e-7)
        return -tf.reduce_sum(y_true * (1 - p) ** self.gamma * tf.math.log(p), axis=-1)
