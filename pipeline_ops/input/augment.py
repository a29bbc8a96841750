"""Random augmentation of training examples, drawn only from (seed, epoch, example).

An example is therefore changed in the same way on every worker and after every restart of the gang,
and differently in each epoch. The changes apply to whole batches, after the cache, in the threads
that prepare batches, and run entirely in the graph. This module changes images whose labels stay
the same. `augment_scenes.py` changes images with boxes.

Legend: b examples, H W C image.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from pipeline_ops.config.input import AugmentOptions
from pipeline_ops.input.image_transforms import Part, Window, render
from pipeline_ops.input.stateless_random import StatelessRandom
from pipeline_ops.input.tensorflow_start import tf

Load = Callable[[tf.Tensor], tuple[Any, Any]]
"""A function from example numbers, int64, to features and labels."""

LEFT_RIGHT, DOWN, RIGHT, BRIGHTNESS, CONTRAST, TOP_BOTTOM, SCALE, SATURATION, ROW, COLUMN = range(
    10
)
"""The names of the draws. Each change has its own random numbers."""


class Augmentation(Protocol):
    """The random augmentation of the examples of a step."""

    def get_example_indices(self, rng: StatelessRandom) -> tf.Tensor:
        """Returns the numbers of all examples that `load` uses, int64."""
        ...

    def load(self, load: Load, rng: StatelessRandom) -> tuple[Any, Any]:
        """Returns the examples of the draws, changed."""
        ...


@dataclasses.dataclass(frozen=True)
class ImageAugmentation:
    """Changes uint8 images as the config describes.

    The area beyond the edge of an image repeats that edge. Labels stay the same.
    """

    config: AugmentOptions

    def get_example_indices(self, rng: StatelessRandom) -> tf.Tensor:
        return rng.examples_b

    def load(self, load: Load, rng: StatelessRandom) -> tuple[Any, Any]:
        images_bHWC, labels = load(rng.examples_b)
        return self.augment_images(images_bHWC, rng), labels

    def augment_images(self, images_bHWC: tf.Tensor, rng: StatelessRandom) -> tf.Tensor:
        if has_geometric_transforms(self.config):
            images_bHWC = render(
                images_bHWC, *draw_windows(self.config, images_bHWC.shape[1:3], rng)
            )
        return to_uint8(adjust_colors(self.config, images_bHWC, rng))


def has_geometric_transforms(config: AugmentOptions) -> bool:
    """Returns whether the config moves any pixel."""
    return (
        config.flip_left_right
        or config.flip_top_bottom
        or config.scale is not None
        or config.shift > 0
    )


def draw_windows(
    config: AugmentOptions,
    shape: tuple[int, int],
    rng: StatelessRandom,
    parts: tuple[Part, Part] | None = None,
) -> tuple[Window, Window]:
    """Returns the rows and columns of images on their canvases.

    An image covers the shown part, or lies somewhere in it if it is too small to cover it.

    Args:
      shape: height and width.
      parts: the rows and the columns that are shown of each canvas. None shows all of them, and
          only then images are shifted.
    """
    scale_b = _draw_scale(config, rng)

    def draw_window(
        axis: int, position: int, shift: int, mirror: int, may_be_mirrored: bool
    ) -> Window:
        zeros_b, size = tf.zeros_like(rng.examples_b, tf.float32), shape[axis]
        part_b = parts[axis] if parts else (zeros_b, zeros_b + size)
        shift_b = (
            config.shift * rng.uniform_symmetric(shift) if config.shift and not parts else zeros_b
        )
        return Window.from_position(
            size,
            rng.uniform(position),
            shift_b,
            scale_b,
            rng.uniform(mirror) < 0.5 if may_be_mirrored else None,
            part_b,
        )

    return draw_window(0, ROW, DOWN, TOP_BOTTOM, config.flip_top_bottom), draw_window(
        1, COLUMN, RIGHT, LEFT_RIGHT, config.flip_left_right
    )


def _draw_scale(config: AugmentOptions, rng: StatelessRandom) -> tf.Tensor | None:
    """Returns float32 [b], or None if images are not scaled.

    Uses no exponential function: its last digit depends on the position of an example in the batch.
    """
    if config.scale is None:
        return None
    return config.scale.min + (config.scale.max - config.scale.min) * rng.uniform(SCALE)


def adjust_colors(
    config: AugmentOptions, images_bHWC: tf.Tensor, rng: StatelessRandom
) -> tf.Tensor:
    """Changes the colours of images of any type. Returns float32 if any colour is changed, and then
    values may lie outside of the range.
    """
    if not (config.brightness or config.contrast or config.saturation):
        return images_bHWC

    def factor(max_change: float, draw_id: int) -> tf.Tensor:
        return (1 + max_change * rng.uniform_symmetric(draw_id))[:, None, None, None]

    values = tf.cast(images_bHWC, tf.float32)
    if config.saturation:
        grey = tf.reduce_mean(values, axis=-1, keepdims=True)
        values = grey + (values - grey) * factor(config.saturation, SATURATION)
    if config.brightness or config.contrast:
        mean = tf.reduce_mean(values, axis=[1, 2], keepdims=True)
        offset = 255 * config.brightness * rng.uniform_symmetric(BRIGHTNESS)[:, None, None, None]
        values = (values - mean) * factor(config.contrast, CONTRAST) + (mean + offset)
    return values


def to_uint8(images_bHWC: tf.Tensor) -> tf.Tensor:
    return (
        images_bHWC
        if images_bHWC.dtype == tf.uint8
        else tf.cast(tf.clip_by_value(tf.round(images_bHWC), 0, 255), tf.uint8)
    )
