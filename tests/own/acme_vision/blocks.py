"""Layers that the models share."""

from __future__ import annotations

from keras import layers


def convolution(width: int) -> list[layers.Layer]:
    return [
        layers.Conv2D(width, 3, strides=2),
        layers.BatchNormalization(momentum=0.9),
        layers.ReLU(),
    ]
