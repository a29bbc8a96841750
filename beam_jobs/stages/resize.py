"""Brings every image to one size, and its boxes along.

An image that has this size already stays as it is, to the byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from beam_jobs.stages.boxes import cut_out, transform_boxes
from beam_jobs.stages.stage import Color, Example, parameters
from pipeline_ops.artifacts.dataset import to_grey

if TYPE_CHECKING:
    import numpy as np


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
    """Averages over areas to shrink, which avoids aliasing, and interpolates linearly to
    enlarge."""
    height, width, _ = example.shape
    if (height, width) == (parameters.height, parameters.width):
        return example
    if parameters.mode == "crop":
        return _stretch(_crop(example, parameters), parameters.height, parameters.width)
    if parameters.mode == "letterbox":
        return _letterbox(example, parameters)
    return _stretch(example, parameters.height, parameters.width)


def _stretch(example: Example, height: int, width: int) -> Example:
    before_height, before_width, _ = example.shape
    boxes = transform_boxes(example.boxes, height / before_height, width / before_width)
    return example.with_image(_resize_pixels(example.image, height, width), boxes)


def _resize_pixels(image_HWC: np.ndarray, height: int, width: int) -> np.ndarray:
    import cv2

    if image_HWC.shape[:2] == (height, width):
        return image_HWC
    shrinks = height * width < image_HWC.shape[0] * image_HWC.shape[1]
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    resized: np.ndarray = cv2.resize(image_HWC, (width, height), interpolation=method)
    return resized.reshape(height, width, -1)


def _crop(example: Example, parameters: Resize) -> Example:
    """The largest part in the middle that has the requested proportions, to the pixel."""
    height, width, _ = example.shape
    part_height = max(1, min(height, round(width * parameters.height / parameters.width)))
    part_width = max(1, min(width, round(height * parameters.width / parameters.height)))
    return cut_out(
        example,
        (height - part_height) // 2,
        (width - part_width) // 2,
        part_height,
        part_width,
        parameters.min_visible,
    )


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
