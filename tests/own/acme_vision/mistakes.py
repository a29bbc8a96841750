"""Models, losses and callbacks with the usual mistakes."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import Input, Model, Sequential, layers


def several_labels(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    return Sequential(
        [
            Input(image_shape),
            layers.Flatten(),
            layers.Dense(num_classes),
            layers.Activation("sigmoid", name="answer"),
        ]
    )


def several_labels_of_a_map(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    images = Input(image_shape)
    x = layers.Conv2D(num_classes, image_shape[:2], activation="sigmoid")(images)
    return Model(images, layers.Reshape((num_classes,))(x))


def averaged(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    """The mean of two probabilities, behind no softmax."""
    images = Input(image_shape)
    flat = layers.Flatten()(layers.Rescaling(1 / 255)(images))
    heads = [layers.Dense(num_classes, activation="softmax")(flat) for _ in range(2)]
    return Model(images, layers.Average()(heads))


def one_output_too_many(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    return Sequential([Input(image_shape), layers.Flatten(), layers.Dense(num_classes + 1)])


def a_map(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    return Sequential([Input(image_shape), layers.Conv2D(num_classes, 3)])


def a_number(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    return Sequential([Input(image_shape), layers.Flatten(), layers.Dense(1)])


def two_outputs(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    images = Input(image_shape)
    flat = layers.Flatten()(images)
    return Model(images, [layers.Dense(num_classes)(flat), layers.Dense(num_classes)(flat)])


class WithoutArguments(Model):
    def __init__(self) -> None:
        super().__init__()


def no_model(image_shape: tuple[int, int, int], num_classes: int) -> layers.Layer:
    return layers.Dense(num_classes)


def raising(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    raise KeyError("width")


loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def without_gradient(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.not_equal(tf.argmax(logits, axis=-1), labels), tf.float32)


def broken_loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(logits * labels, axis=-1)


def swapped(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


lambda_callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)


class WithoutMethods:
    def on_epoch_end(self, epoch: int) -> None: ...


class OfBatches(keras.callbacks.Callback):
    def on_test_batch_end(self, batch: int, logs: object = None) -> None: ...
