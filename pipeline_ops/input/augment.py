"""Random changes of training examples, drawn from (seed, epoch, example) and from nothing else.

So an example is changed in the same way whichever worker has it and however often the gang was restarted, and
differently in each epoch. Whole batches at once, after the cache, in the threads that prepare batches, and all graph.
Here: images whose labels stay what they are. Images with boxes: `augment_scenes.py`.

Legend: b examples, H W C image.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from pipeline_ops.config.input import Augment
from pipeline_ops.input.image_transforms import Part, Window, show
from pipeline_ops.input.stateless_random import Draws
from pipeline_ops.input.tensorflow_start import import_tensorflow

tf = import_tensorflow()

Load = Callable[[tf.Tensor], tuple[Any, Any]]
"""Features and labels of examples by number, int64."""

LEFT_RIGHT, DOWN, RIGHT, BRIGHTNESS, CONTRAST, TOP_BOTTOM, SCALE, SATURATION, ROW, COLUMN = range(10)
"""Each change draws numbers of its own."""


class Changes(Protocol):
    """What is done to the examples of a step."""

    def examples(self, draws: Draws) -> tf.Tensor:
        """The numbers of all examples that `load` takes something of, int64."""
        ...

    def load(self, load: Load, draws: Draws) -> tuple[Any, Any]:
        """The examples that the draws are for, changed."""
        ...


@dataclasses.dataclass(frozen=True)
class ImageChanges:
    """uint8 images, changed as the config says. What moves into sight from beyond an image is its edge, repeated; labels stay what they are."""

    config: Augment

    def examples(self, draws: Draws) -> tf.Tensor:
        return draws.examples_b

    def load(self, load: Load, draws: Draws) -> tuple[Any, Any]:
        images_bHWC, labels = load(draws.examples_b)
        return self.images(images_bHWC, draws), labels

    def images(self, images_bHWC: tf.Tensor, draws: Draws) -> tf.Tensor:
        if moves(self.config):
            images_bHWC = show(images_bHWC, *windows(self.config, images_bHWC.shape[1:3], draws))
        return as_pixels(change_colours(self.config, images_bHWC, draws))


def moves(config: Augment) -> bool:
    """Whether any pixel comes to lie elsewhere."""
    return config.flip_left_right or config.flip_top_bottom or config.scale is not None or config.shift > 0


def windows(config: Augment, shape: tuple[int, int], draws: Draws, parts: tuple[Part, Part] | None = None) -> tuple[Window, Window]:
    """Rows and columns of images that cover what is shown, or lie somewhere in it where they are too small for that.

    Args:
      shape: height and width.
      parts: the rows and the columns that are shown of each canvas; None: all of them, and only then there is a shift.
    """
    scale_b = _draw_scale(config, draws)

    def window(axis: int, place: int, shift: int, mirror: int, may_be_mirrored: bool) -> Window:
        zeros_b, size = tf.zeros_like(draws.examples_b, tf.float32), shape[axis]
        part_b = parts[axis] if parts else (zeros_b, zeros_b + size)
        shift_b = config.shift * draws.around_zero(shift) if config.shift and not parts else zeros_b
        return Window.placed(size, draws.uniform(place), shift_b, scale_b, draws.uniform(mirror) < 0.5 if may_be_mirrored else None, part_b)

    return window(0, ROW, DOWN, TOP_BOTTOM, config.flip_top_bottom), window(1, COLUMN, RIGHT, LEFT_RIGHT, config.flip_left_right)


def _draw_scale(config: Augment, draws: Draws) -> tf.Tensor | None:
    """float32 [b]; None where nothing is scaled. No exponential function: its last digit depends on where in a batch an example is."""
    if config.scale is None:
        return None
    return config.scale.least + (config.scale.most - config.scale.least) * draws.uniform(SCALE)


def change_colours(config: Augment, images_bHWC: tf.Tensor, draws: Draws) -> tf.Tensor:
    """Images of any type; float32 where something is changed, and then not yet within the range of values."""
    if not (config.brightness or config.contrast or config.saturation):
        return images_bHWC

    def factor(most: float, what: int) -> tf.Tensor:
        return (1 + most * draws.around_zero(what))[:, None, None, None]

    values = tf.cast(images_bHWC, tf.float32)
    if config.saturation:
        grey = tf.reduce_mean(values, axis=-1, keepdims=True)
        values = grey + (values - grey) * factor(config.saturation, SATURATION)
    if config.brightness or config.contrast:
        mean = tf.reduce_mean(values, axis=[1, 2], keepdims=True)
        offset = 255 * config.brightness * draws.around_zero(BRIGHTNESS)[:, None, None, None]
        values = (values - mean) * factor(config.contrast, CONTRAST) + (mean + offset)
    return values


def as_pixels(images_bHWC: tf.Tensor) -> tf.Tensor:
    return images_bHWC if images_bHWC.dtype == tf.uint8 else tf.cast(tf.clip_by_value(tf.round(images_bHWC), 0, 255), tf.uint8)
