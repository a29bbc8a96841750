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
