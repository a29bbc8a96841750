"""A small convolutional network of many tutorials, enough for handwritten digits.

Its layers are conv32 - pool - conv64 - pool - dense64 - dense.
"""

from __future__ import annotations

from keras import Input, Model, Sequential, layers


def build(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    """Builds a model of about 121,000 parameters for 28x28 grey images and ten classes."""
    return Sequential(
        [
            Input(image_shape, name="images"),
            layers.Rescaling(1 / 255),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(num_classes, dtype="float32"),
        ]
    )
