"""Models as a user of Trainyard writes them: functions that return a built Keras model."""

from __future__ import annotations

from keras import Input, Model, Sequential, layers

from acme_vision.blocks import convolution


def normalized(image_shape: tuple[int, int, int], num_classes: int, width: int = 8) -> Model:
    """A network with batch normalization, whose statistics differ between workers, and a
    regularizer."""
    return Sequential(
        [
            Input(image_shape),
            layers.Rescaling(1 / 255),
            *convolution(width),
            layers.Flatten(),
            layers.Dense(num_classes, kernel_regularizer="l2", dtype="float32"),
        ]
    )


def smooth(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    """A smooth network. At a tie, rounding decides a ReLU or a maximum, and the weights would
    differ by more than rounding. `hidden` is large enough that two parameter servers share it."""
    return Sequential(
        [
            Input(image_shape),
            layers.Rescaling(1 / 255),
            layers.Conv2D(8, 3, strides=2, activation="gelu"),
            layers.Flatten(),
            layers.Dense(100, activation="tanh", name="hidden"),
            layers.Dense(num_classes, dtype="float32", name="logits"),
        ]
    )


def quantized(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    """A network with a layer that keeps the weights of its kernel as int8, and learns a bias."""
    model = smooth(image_shape, num_classes)
    model.get_layer("hidden").quantize("int8")
    return model


def dropping(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    """A network with layers that draw random numbers in training."""
    return Sequential(
        [
            Input(image_shape),
            layers.Rescaling(1 / 255),
            layers.GaussianNoise(0.1),
            layers.Flatten(),
            layers.Dense(32, activation="tanh"),
            layers.Dropout(0.5),
            layers.Dense(num_classes, dtype="float32", name="logits"),
        ]
    )


def pooled(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    """A network with an operation that DTensor does not support: the gradient of a mean over
    windows."""
    return Sequential(
        [
            Input(image_shape),
            layers.Conv2D(4, 3),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(num_classes, dtype="float32", name="logits"),
        ]
    )
