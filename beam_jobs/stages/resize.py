"""Brings every image to one size, and its boxes along.

An image that has this size already stays as it is, to the byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from beam_jobs.stages.boxes import cut_out, transform_boxes
from beam_jobs.stages.stage import Color, Example, parameters
from pipeline_ops.contract.dataset import to_grey

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf


@parameters
class Resize:
    height: int = Field(ge=1, le=16384)
    """Height of the resulting image, in pixels."""
    width: int = Field(ge=1, le=16384)
    """Width of the resulting image, in pixels."""
    mode: Literal["stretch", "letterbox", "crop"] = "stretch"
    """stretch: loses the proportions. letterbox: the whole image, with bars. crop: the middle of
    the image, without bars."""
    pad_color: Color = (0, 0, 0)
    """Colour of the bars of letterbox, [red, green, blue]."""
    min_visible: float = Field(0.25, gt=0, le=1)
    """Smallest share of its area that must be left of a box that crop has cut. Boxes with less are
    dropped."""


def resize(example: Example, parameters: Resize) -> Example:
    """Averages over areas to shrink a side, which avoids aliasing, and then interpolates linearly
    to enlarge the other one."""
    height, width, _ = example.shape
    if (height, width) == (parameters.height, parameters.width):
        return example
    if parameters.mode == "letterbox":
        return _letterbox(example, parameters)
    if parameters.mode == "crop":
        example = _crop(example, parameters)
    return _stretch(example, parameters.height, parameters.width)


def _stretch(example: Example, height: int, width: int) -> Example:
    before_height, before_width, _ = example.shape
    boxes = transform_boxes(example.boxes, height / before_height, width / before_width)
    return example.with_image(_resize_pixels(example.image, height, width), boxes)


def _resize_pixels(image_HWC: np.ndarray, height: int, width: int) -> np.ndarray:
    import cv2

    before_height, before_width, channels = image_HWC.shape
    shrunk = min(height, before_height), min(width, before_width)
    if shrunk != (before_height, before_width):
        image_HWC = cv2.resize(image_HWC, shrunk[::-1], interpolation=cv2.INTER_AREA)
    if shrunk != (height, width):
        image_HWC = cv2.resize(image_HWC, (width, height), interpolation=cv2.INTER_LINEAR)
    return image_HWC.reshape(height, width, channels)


def _crop(example: Example, parameters: Resize) -> Example:
    """The largest part in the middle that has the requested proportions, to the pixel."""
    height, width, _ = example.shape
    part_height = max(1, min(height, round(width * parameters.height / parameters.width)))
    part_width = max(1, min(width, round(height * parameters.width / parameters.height)))
    top, left = (height - part_height) // 2, (width - part_width) // 2
    return cut_out(example, top, left, part_height, part_width, parameters.min_visible)


def _letterbox(example: Example, parameters: Resize) -> Example:
    import numpy as np

    height, width, channels = example.shape
    scale = min(parameters.height / height, parameters.width / width)
    inner_height = max(1, min(parameters.height, round(height * scale)))
    inner_width = max(1, min(parameters.width, round(width * scale)))
    inner = _stretch(example, inner_height, inner_width)
    top, left = (parameters.height - inner_height) // 2, (parameters.width - inner_width) // 2
    image = np.empty((parameters.height, parameters.width, channels), np.uint8)
    image[:] = parameters.pad_color if channels == 3 else to_grey(parameters.pad_color)
    image[top : top + inner_height, left : left + inner_width] = inner.image
    return inner.with_image(image, transform_boxes(inner.boxes, down=top, right=left))


# The stage in TensorFlow


def serve(image_HWC: tf.Tensor, parameters: Resize) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the image, uint8, and its window. With bars, a window is larger than the image."""
    import tensorflow as tf

    target = tf.constant((parameters.height, parameters.width))
    size = tf.cast(target, tf.float64)
    shape = tf.cast(tf.shape(image_HWC)[:2], tf.float64)
    if parameters.mode == "crop":
        part = tf.round(shape[::-1] * size / size[::-1])
        part = tf.clip_by_value(part, tf.ones_like(part), shape)
        before = (shape - part) // 2
        top, left, height, width = tf.unstack(tf.cast(tf.concat([before, part], axis=0), tf.int32))
        image = _serve_pixels(image_HWC[top : top + height, left : left + width], target)
        return image, tf.concat([before / shape, (before + part) / shape], axis=0)
    if parameters.mode == "stretch":
        return _serve_pixels(image_HWC, target), tf.constant([0.0, 0.0, 1.0, 1.0])
    inner = tf.round(shape * tf.reduce_min(size / shape))
    inner = tf.clip_by_value(inner, tf.ones_like(inner), size)
    before = (size - inner) // 2
    color = parameters.pad_color
    bars = tf.constant(color if image_HWC.shape[2] == 3 else [to_grey(color)], tf.int32)
    resized = tf.cast(_serve_pixels(image_HWC, tf.cast(inner, tf.int32)), tf.int32) - bars
    margins = tf.cast(tf.stack([before, size - inner - before], axis=1), tf.int32)
    image = tf.pad(resized, tf.concat([margins, [[0, 0]]], axis=0)) + bars
    window = tf.concat([-before / inner, (size - before) / inner], axis=0)
    return tf.cast(image, tf.uint8), window


def _serve_pixels(image_HWC: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """`_resize_pixels` in TensorFlow, whose area method is OpenCV's but for rounding."""
    import tensorflow as tf

    shrunk = tf.minimum(size, tf.shape(image_HWC)[:2])
    averaged = tf.raw_ops.ResizeArea(images=image_HWC[tf.newaxis], size=shrunk)
    # Without a side to enlarge, this changes nothing.
    enlarged = tf.image.resize(tf.round(averaged), size)[0]
    return tf.cast(tf.round(enlarged), tf.uint8)
