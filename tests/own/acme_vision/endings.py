"""Models that return probabilities, as people write them."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import Input, Model, Sequential, layers

from acme_vision.nets import smooth


def last_layer(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    return Sequential(
        [
            Input(image_shape),
            layers.Flatten(),
            layers.Dense(num_classes, activation="softmax"),
        ]
    )


def not_built(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    return Sequential([layers.Flatten(), layers.Dense(num_classes), layers.Activation("softmax")])


def layer(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    model = smooth(image_shape, num_classes)
    return Model(model.inputs[0], layers.Softmax(dtype="float32")(model.outputs[0]))


def inner_model(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    images = Input(image_shape)
    inner = layer(image_shape, num_classes)
    return Model(images, layers.Activation("linear", dtype="float32")(inner(images)))


def operation(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    images = Input(image_shape)
    return Model(images, keras.ops.softmax(layers.Dense(num_classes)(layers.Flatten()(images))))


def reshaped(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    """A convolution over all pixels, as mobile networks end."""
    images = Input(image_shape)
    x = layers.Conv2D(num_classes, image_shape[:2], activation="softmax")(images)
    return Model(images, layers.Flatten()(x))


class _OwnSoftmax(layers.Layer):
    def call(self, values: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(values / 1e4)


def own_layer(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    return Sequential(
        [Input(image_shape), layers.Flatten(), layers.Dense(num_classes), _OwnSoftmax()]
    )


def single(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    """A probability of the second of two classes."""
    return Sequential([Input(image_shape), layers.Flatten(), layers.Dense(1, activation="sigmoid")])


class Subclassed(Model):
    """A model whose weights are created by its first call, with losses of its own: an L2 penalty of
    weights, and a penalty of activations."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, penalty: float = 0.0):
        super().__init__()
        self.scale = layers.Rescaling(1 / 255)
        self.convolution = layers.Conv2D(8, 3, strides=2, activation="gelu")
        self.flatten = layers.Flatten()
        self.hidden = layers.Dense(
            100, "tanh", kernel_regularizer=keras.regularizers.L2(penalty), name="hidden"
        )
        self.answer = layers.Dense(num_classes, "softmax", dtype="float32")
        self.penalty = penalty

    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        hidden = self.hidden(self.flatten(self.convolution(self.scale(images))))
        self.add_loss(self.penalty * tf.reduce_mean(tf.square(hidden)))
        return self.answer(hidden)


class OnlyInService(Model):
    """Returns logits in training."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int):
        super().__init__()
        self.flatten, self.answer = layers.Flatten(), layers.Dense(num_classes)

    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        logits = self.answer(self.flatten(images) / 255)
        return logits if training else keras.ops.softmax(logits)


def build(image_shape: tuple[int, int, int], num_classes: int, **parameters: float) -> Model:
    return Subclassed(image_shape, num_classes, **parameters)
