"""Models whose layers are made in an order that differs between processes."""

from __future__ import annotations

import os

import keras

NAMES = {"edges", "texture", "colour", "shape", "corner", "shade"}


class Branches(keras.Model):
    """Makes a branch of one shape for each name, in the given order."""

    def __init__(self, image_shape, num_classes, names):
        super().__init__()
        self.scale, self.flatten = keras.layers.Rescaling(1 / 255), keras.layers.Flatten()
        self.branches = {}
        for name in names:
            self.branches[name] = keras.layers.Dense(6, "tanh", name=name)
            setattr(self, f"branch_{name}", self.branches[name])
        self.answer = keras.layers.Dense(num_classes, name="answer")
        self(keras.ops.zeros((1, *image_shape)))

    def call(self, x, training=False):
        x = self.flatten(self.scale(x))
        parts = [(n + 1) * self.branches[name](x) for n, name in enumerate(sorted(NAMES))]
        return self.answer(sum(parts))


def of_a_set(image_shape, num_classes):
    return Branches(image_shape, num_classes, NAMES)


def of_the_environment(image_shape, num_classes):
    """The order depends on the environment, as that of a list of files does."""
    backwards = os.environ["PYTHONHASHSEED"] == "2"
    return Branches(image_shape, num_classes, sorted(NAMES, reverse=backwards))


def nested(image_shape, num_classes):
    image = keras.Input(image_shape)
    made = {name: Branches(image_shape, num_classes, NAMES) for name in NAMES}
    return keras.Model(image, keras.layers.Add()([made[name](image) for name in NAMES]))


KINDS = {
    "set of names": of_a_set,
    "names of the environment": of_the_environment,
    "nested": nested,
}
