"""Adds changed copies of each training example to the data set. Examples for validation and test stay alone.

The copies of an image depend on the seed and its key, so they are the same on every try. A copy's key is the image's with
its number: `cat/1.png#copy1`. What is on an image after a flip or a turn must still be of its class: a 6 that is turned
is a 9.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

import pydantic
from pydantic import Field

from beam_jobs.stages.boxes import cut_out, flipped_horizontally, flipped_vertically, scaled, transposed
from beam_jobs.stages.stage import Example, parameters

if TYPE_CHECKING:
    import numpy as np


@parameters
class Augment:
    copies: int = Field(1, ge=1, le=100)
    """Of each training example, beside the example itself."""
    flip_horizontal: bool = False
    """Mirror every other copy, left and right."""
    flip_vertical: bool = False
    """Mirror every other copy, above and below."""
    rotate90: bool = False
    """Turn by 0, 90, 180 or 270 degrees; height and width may change places."""
    brightness: float = Field(0.0, ge=0, le=1)
    """Add up to this share of white, or take it away."""
    contrast: float = Field(0.0, ge=0, lt=1)
    """Stretch the distance to the image's mean by a factor of 1 - contrast to 1 + contrast."""
    crop: float = Field(0.0, ge=0, lt=1)
    """Cut up to this share off the height and the width, at any place, and enlarge the rest to the size before."""
    min_visible: float = Field(0.25, gt=0, le=1)
    """Of a box that `crop` has cut, the share of its area that must be left; otherwise the box is dropped."""
    seed: int = Field(0, ge=0)
    """Another seed gives other copies."""

    @pydantic.model_validator(mode="after")
    def _fits(self) -> Augment:
        if not (self.flip_horizontal or self.flip_vertical or self.rotate90 or self.brightness or self.contrast or self.crop):
            raise ValueError("needs at least one of flip_horizontal, flip_vertical, rotate90, brightness, contrast, crop: "
                             "copies that are all the same teach nothing")
        return self


def augment(example: Example, parameters: Augment) -> Example | list[Example]:
    if example.split != "train":
        return example
    return [example, *(_copy(example, number, parameters) for number in range(1, parameters.copies + 1))]


def _copy(example: Example, number: int, parameters: Augment) -> Example:
    """Every chance is drawn, whether it is used or not, so that one parameter does not change what another does."""
    import numpy as np

    key = f"{example.key}#copy{number}"
    seed = hashlib.blake2b(f"{parameters.seed}:{key}".encode(), digest_size=8, person=b"augment").digest()
    crop_share, crop_top, crop_left, horizontal, vertical, turns, brightness, contrast = np.random.default_rng(int.from_bytes(seed, "big")).random(8)
    copy = dataclasses.replace(example, key=key)
    if parameters.crop:
        copy = _cropped(copy, 1 - parameters.crop * crop_share, crop_top, crop_left, parameters.min_visible)
    if parameters.flip_horizontal and horizontal < 0.5:
        copy = _moved(copy, copy.image[:, ::-1], flipped_horizontally(copy.boxes, copy.shape[1]))
    if parameters.flip_vertical and vertical < 0.5:
        copy = _moved(copy, copy.image[::-1], flipped_vertically(copy.boxes, copy.shape[0]))
    if parameters.rotate90:
        for _ in range(int(turns * 4)):
            copy = _turned(copy)
    if parameters.brightness or parameters.contrast:
        image = _relit(copy.image, parameters.brightness * (2 * brightness - 1), 1 + parameters.contrast * (2 * contrast - 1))
        copy = copy.with_image(image)
    return copy


def _moved(example: Example, image: np.ndarray, boxes: tuple | None) -> Example:
    import numpy as np

    return dataclasses.replace(example.with_image(np.ascontiguousarray(image)), boxes=boxes)


def _turned(example: Example) -> Example:
    """By 90 degrees, clockwise: rows become columns, then left and right change places."""
    width = example.shape[0]
    return _moved(example, example.image.swapaxes(0, 1)[:, ::-1], flipped_horizontally(transposed(example.boxes), width))


def _cropped(example: Example, share: float, top: float, left: float, min_visible: float) -> Example:
    """A part of `share` of both sides, as large as the whole was; `top` and `left` are shares of the free room."""
    import cv2

    height, width, channels = example.shape
    part_height, part_width = max(1, round(height * share)), max(1, round(width * share))
    part = cut_out(example, int(top * (height - part_height + 1)), int(left * (width - part_width + 1)), part_height, part_width, min_visible)
    image = cv2.resize(part.image, (width, height), interpolation=cv2.INTER_LINEAR).reshape(height, width, channels)
    return _moved(part, image, scaled(part.boxes, height / part_height, width / part_width))


def _relit(image: np.ndarray, brightness: float, contrast: float) -> np.ndarray:
    """One rounding for both: a table of 256 values."""
    import cv2
    import numpy as np

    mean = float(image.mean())
    table = np.clip(np.rint((np.arange(256) - mean) * contrast + mean + 255 * brightness), 0, 255).astype(np.uint8)
    return cv2.LUT(image, table).reshape(image.shape)
