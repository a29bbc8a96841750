"""A model and a callback that are slow, or hang once, for `test_phases.py`."""

from __future__ import annotations

import time
from pathlib import Path

import keras
import tensorflow as tf


class Brake(keras.layers.Layer):
    """Takes time for each batch of a validation. It hangs once if there is a file `hang`."""

    def __init__(self, seconds: float, folder: str):
        super().__init__()
        self._seconds, self._hang = seconds, Path(folder) / "hang"

    def call(self, inputs, training=None):
        if training:
            return inputs

        def wait(values):
            time.sleep(self._seconds)
            if self._hang.exists():
                (self._hang.parent / "hangs").touch()
                while self._hang.exists():
                    time.sleep(0.05)
            return values

        return tf.ensure_shape(tf.py_function(wait, [inputs], inputs.dtype), inputs.shape)


def build(image_shape, num_classes, seconds: float = 0.0, folder: str = "/nowhere"):
    images = keras.Input(image_shape)
    features = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(images))
    return keras.Model(images, keras.layers.Dense(num_classes)(Brake(seconds, folder)(features)))


class SlowCallback(keras.callbacks.Callback):
    """Takes time in a hook, once in the training, on one worker or on all."""

    chief_only = True

    def __init__(self, hook: str, seconds: float):
        super().__init__()
        setattr(self, hook, self._wait)
        self._seconds = seconds

    def _wait(self, *_, logs=None):
        time.sleep(self._seconds)
