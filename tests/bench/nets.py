"""The networks that are timed, as a user's own package would have them:
`train.model: nets:build_dense`."""

from __future__ import annotations

from keras import Input, Model, Sequential, layers


def build_cnn(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    """conv32 - pool - conv64 - pool - dense64 - dense, as `digits_cnn` and as `ddp.py` has it."""
    return Sequential(
        [
            Input(image_shape),
            layers.Rescaling(1 / 255),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(num_classes),
        ]
    )


def build_dense(image_shape: tuple[int, int, int], num_classes: int) -> Model:
    """flatten - dense64 - dense: a step takes so little that what is around it counts."""
    return Sequential(
        [
            Input(image_shape),
            layers.Rescaling(1 / 255),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(num_classes),
        ]
    )
