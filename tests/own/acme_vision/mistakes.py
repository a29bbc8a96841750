"""Models, losses and callbacks with the usual mistakes."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import Input, Model, Sequential, layers


def softmax_in_the_last_layer(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    return Sequential(
        [
            Input(image_shape),
            layers.Flatten(),
            layers.Dense(num_classes, activation="softmax", name="answer"),
        ]
    )


def softmax_as_a_layer(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    inner = Sequential(
        [
            Input(image_shape),
            layers.Flatten(),
            layers.Dense(num_classes),
            layers.Softmax(name="answer"),
        ]
    )
    images = Input(image_shape)
    return Model(images, layers.Activation("linear", dtype="float32")(inner(images)))


def softmax_as_an_operation(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    images = Input(image_shape)
    return Model(images, keras.ops.softmax(layers.Dense(num_classes)(layers.Flatten()(images))))


def sigmoid(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    return Sequential(
        [
            Input(image_shape),
            layers.Flatten(),
            layers.Dense(num_classes),
            layers.Activation("sigmoid", name="answer"),
        ]
    )


class _HiddenSoftmax(layers.Layer):
    def call(self, values: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(values / 1e4)


def softmax_in_an_own_layer(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    return Sequential(
        [Input(image_shape), layers.Flatten(), layers.Dense(num_classes), _HiddenSoftmax()]
    )


def one_output_too_many(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    return Sequential([Input(image_shape), layers.Flatten(), layers.Dense(num_classes + 1)])


def a_map(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    return Sequential([Input(image_shape), layers.Conv2D(num_classes, 3)])


def two_outputs(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    images = Input(image_shape)
    flat = layers.Flatten()(images)
    return Model(images, [layers.Dense(num_classes)(flat), layers.Dense(num_classes)(flat)])


class Subclassed(Model):
    def __init__(self, num_classes: int):
        super().__init__()
        self.dense = layers.Dense(num_classes, activation="softmax")

    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        return self.dense(
            tf.reshape(
                images, [tf.shape(images)[0], images.shape[1] * images.shape[2] * images.shape[3]]
            )
            / 1e4
        )


def subclassed(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    model = Subclassed(num_classes)
    model(tf.zeros((1, *image_shape)))
    return model


def never_ready(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    return Subclassed(num_classes)


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
