"""The network of TensorFlow's tutorials on distributed training. `mnist.yaml` trains it."""

from __future__ import annotations

import keras
from keras import layers


def build(image_shape, num_classes):
    return keras.Sequential(
        [
            keras.Input(image_shape),
            layers.Rescaling(1 / 255),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(num_classes),
        ]
    )
