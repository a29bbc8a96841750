"""Adds changed copies of each training example to the data set.

Examples for validation and test stay as they are. The copies of an image depend on the seed and the
key of the image, so they are the same on every attempt. The key of a copy is the key of the image
with a number: `cat/1.png#copy1`. An object must still be of its class after a flip or a turn: a 6
that is turned is a 9.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pydantic
from pydantic import Field

from beam_jobs.stages.boxes import cut_out, transform_boxes, transpose_boxes
from beam_jobs.stages.stage import Example, parameters

if TYPE_CHECKING:
    import numpy as np


_CHANGES = ("flip_horizontal", "flip_vertical", "rotate90", "brightness", "contrast", "crop")


@parameters
class Augment:
    copies: int = Field(1, ge=1, le=100)
    """Number of copies of each training example, in addition to the example itself."""
    flip_horizontal: bool = False
    """Mirrors a random half of the copies, left and right."""
    flip_vertical: bool = False
    """Mirrors a random half of the copies, above and below."""
    rotate90: bool = False
    """Turns by 0, 90, 180 or 270 degrees. Height and width may change places."""
    brightness: float = Field(0.0, ge=0, le=1)
    """Maximum share of white that is added or taken away."""
    contrast: float = Field(0.0, ge=0, lt=1)
    """Stretches the distance to the image's mean by a factor of 1 - contrast to 1 + contrast."""
    crop: float = Field(0.0, ge=0, lt=1)
    """Cuts up to this share off the height and the width, at any place, and enlarges the rest to
    the previous size."""
    min_visible: float = Field(0.25, gt=0, le=1)
    """Smallest share of its area that must be left of a box that `crop` has cut. Boxes with less
    are dropped."""
    seed: int = Field(0, ge=0)
    """Another seed gives other copies."""

    @pydantic.model_validator(mode="after")
    def _validate(self) -> Augment:
        if not any(getattr(self, name) for name in _CHANGES):
            raise ValueError(
                f"needs at least one of {', '.join(_CHANGES)}: "
                "a model learns nothing from equal copies"
            )
        return self


def augment(example: Example, parameters: Augment) -> Example | list[Example]:
    if example.split != "train":
        return example
    return [
        example,
        *(_make_copy(example, number, parameters) for number in range(1, parameters.copies + 1)),
    ]


def _make_copy(example: Example, number: int, parameters: Augment) -> Example:
    """Draws every random number, used or not, so that no parameter changes another's effect."""
    import numpy as np

    key = f"{example.key}#copy{number}"
    seed = hashlib.blake2b(
        f"{parameters.seed}:{key}".encode(), digest_size=8, person=b"augment"
    ).digest()
    crop_share, crop_top, crop_left, horizontal, vertical, turns, brightness, contrast = (
        np.random.default_rng(int.from_bytes(seed, "big")).random(8)
    )
    copy = example.replace(key=key)
    if parameters.crop:
        copy = _crop(
            copy, 1 - parameters.crop * crop_share, crop_top, crop_left, parameters.min_visible
        )
    if parameters.flip_horizontal and horizontal < 0.5:
        copy = copy.with_image(
            np.ascontiguousarray(copy.image[:, ::-1]),
            transform_boxes(copy.boxes, x_factor=-1, right=copy.shape[1]),
        )
    if parameters.flip_vertical and vertical < 0.5:
        copy = copy.with_image(
            np.ascontiguousarray(copy.image[::-1]),
            transform_boxes(copy.boxes, y_factor=-1, down=copy.shape[0]),
        )
    if parameters.rotate90:
        for _ in range(int(turns * 4)):
            copy = _rotate(copy)
    if parameters.brightness or parameters.contrast:
        image = _adjust_light(
            copy.image,
            parameters.brightness * (2 * brightness - 1),
            1 + parameters.contrast * (2 * contrast - 1),
        )
        copy = copy.with_image(image)
    return copy


def _rotate(example: Example) -> Example:
    """Turns by 90 degrees, clockwise: rows become columns, then left and right change places."""
    import numpy as np

    return example.with_image(
        np.rot90(example.image, -1).copy(),
        transform_boxes(transpose_boxes(example.boxes), x_factor=-1, right=example.shape[0]),
    )


def _crop(example: Example, share: float, top: float, left: float, min_visible: float) -> Example:
    """Enlarges a part of `share` of both sides. `top` and `left` are shares of the free space."""
    import cv2

    height, width, _ = example.shape
    part_height, part_width = max(1, round(height * share)), max(1, round(width * share))
    part = cut_out(
        example,
        int(top * (height - part_height + 1)),
        int(left * (width - part_width + 1)),
        part_height,
        part_width,
        min_visible,
    )
    image = cv2.resize(part.image, (width, height), interpolation=cv2.INTER_LINEAR)
    image = image.reshape(example.shape)
    boxes = transform_boxes(part.boxes, height / part_height, width / part_width)
    return part.with_image(image, boxes)


def _adjust_light(image: np.ndarray, brightness: float, contrast: float) -> np.ndarray:
    """Changes brightness and contrast with one rounding for both, by a table of 256 values."""
    import cv2
    import numpy as np

    mean = float(image.mean())
    table = np.clip(
        np.rint((np.arange(256) - mean) * contrast + mean + 255 * brightness), 0, 255
    ).astype(np.uint8)
    adjusted: np.ndarray = cv2.LUT(image, table).reshape(image.shape)
    return adjusted
