"""Stages of a user's own, with a served form and without, right and wrong."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from beam_jobs.stages.resize import Resize, resize
from beam_jobs.stages.resize import serve as serve_resize
from beam_jobs.stages.stage import Example, Stage, parameters


@parameters
class Invert:
    pass


def invert(example: Example, parameters: Invert) -> Example:
    return example.with_image(255 - example.image)


def serve(image, parameters: Invert):
    return 255 - image


@parameters
class Brighten:
    factor: float = Field(1.3, gt=0)


def brighten(example: Example, parameters: Brighten) -> Example:
    """Leaves bright images alone, so that the served form has a condition."""
    if example.image.mean() > 150:
        return example
    scaled = np.rint(example.image.astype(np.float32) * np.float32(parameters.factor))
    return example.with_image(np.clip(scaled, 0, 255).astype(np.uint8))


def serve_brighten(image, parameters: Brighten):
    import tensorflow as tf

    pixels = tf.cast(image, tf.float32)
    if tf.reduce_mean(tf.cast(image, tf.float64)) > 150:  # AutoGraph makes a tf.cond of it
        return pixels
    return pixels * parameters.factor


BRIGHTEN = Stage(Brighten, brighten, serve=serve_brighten)
INVERT_WITHOUT = Stage(Invert, invert)
INVERT_WRONG = Stage(Invert, invert, serve=lambda image, parameters: image)


def shift(image, parameters: Resize):
    import tensorflow as tf

    resized, window = serve_resize(image, parameters)
    return tf.roll(resized, 1, axis=1), window


SHIFTED_RESIZE = Stage(Resize, resize, serve=shift)


@parameters
class Corner:
    top: float = 0.25
    """The window that `serve` returns. That of the stage is 0.25."""


def corner(example: Example, parameters: Corner) -> Example:
    """Cuts off the upper quarter."""
    rows = len(example.image) // 4
    moved = [box.transform(down=-rows).clip(3 * rows, 1e9) for box in example.boxes or ()]
    boxes = None if example.boxes is None else tuple(filter(None, moved))
    return example.replace(pixels=example.image[rows:].copy(), boxes=boxes)


def serve_corner(image, parameters: Corner):
    import tensorflow as tf

    cut = image[tf.shape(image)[0] // 4 :]
    return (cut, tf.constant([parameters.top, 0.0, 1.0, 1.0])) if parameters.top else cut


def invert_in_python(image, parameters):
    import tensorflow as tf

    inverted = tf.numpy_function(lambda pixels: 255 - pixels, [image], tf.uint8)
    return tf.ensure_shape(inverted, [None, None, 1])


def invert_some(image, parameters):
    import tensorflow as tf

    return 255 - tf.ensure_shape(image, [8, None, None])


CORNER = Stage(Corner, corner, serve=serve_corner)
INVERT_RIGHT = Stage(Invert, invert, serve=serve)
INVERT_IN_PYTHON = Stage(Invert, invert, serve=invert_in_python)
INVERT_SOME = Stage(Invert, invert, serve=invert_some)
INVERT_ROW = Stage(Invert, invert, serve=lambda image, parameters: image[0])
INVERT_SHORT = Stage(Invert, invert, serve=lambda image, parameters: 255 - image[1:])
INVERT_SOFT = Stage(Invert, invert, serve=lambda image, parameters: 252 - image // 2 - image // 2)


def serve_misspelt(image, parameters: Invert):
    import tensorflow as tf

    return 255 - tf.minimun(image, 255)


INVERT_MISSPELT = Stage(Invert, invert, serve=serve_misspelt)
