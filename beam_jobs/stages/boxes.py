"""Boxes: functions that move them along with pixels, and the forms that sources give them in.

Shared by the stages that move pixels, `decode` and the sources. Not a stage. All lengths are
pixels. `None` stands for the boxes of an example for classification and stays None.

Annotations belong to the image as it is stored: the tools that draw boxes, and TensorFlow's
decoders, ignore EXIF's orientation. There is one exception. If an annotation gives the size of the
image, and it is that of the upright and not of the stored image, the boxes were drawn on the
upright image. If the two sizes are equal, the boxes count as drawn on the stored image. A source
whose tool turns images says so with UPRIGHT_FRACTIONS.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from beam_jobs.stages.stage import Box, Example, Reject

FRACTIONS = (1.0, 1.0)
"""The frame of boxes whose coordinates are fractions of the image as it is stored."""
UPRIGHT_FRACTIONS = (0.0, 0.0)
"""The frame of boxes in fractions of the upright image. Browsers and Ultralytics YOLO turn an image
as EXIF says before anything is drawn on it."""

_TOLERANCE_PIXELS = 1.0
"""Maximum distance by which a box may leave the image, and is clipped. Tools round, and Pascal VOC
counts pixels from 1."""

Size = tuple[float, float]  # height, width
Boxes = tuple[Box, ...] | None


def transform_boxes(
    boxes: Boxes, y_factor: float = 1, x_factor: float = 1, down: float = 0, right: float = 0
) -> Boxes:
    """The boxes after their image was stretched, then moved. See `Box.transform`."""
    if boxes is None:
        return None
    return tuple(box.transform(y_factor, x_factor, down, right) for box in boxes)


def transpose_boxes(boxes: Boxes) -> Boxes:
    """The boxes after rows became columns."""
    if boxes is None:
        return None
    return tuple(
        dataclasses.replace(box, ymin=box.xmin, xmin=box.ymin, ymax=box.xmax, xmax=box.ymax)
        for box in boxes
    )


def clip_to_image(boxes: Boxes, height: int, width: int, min_visible: float = 0.0) -> Boxes:
    """The parts of the boxes in the image, if a share of `min_visible` or more is left."""
    if boxes is None:
        return None
    return tuple(
        part
        for box in boxes
        if (part := box.clip(height, width)) and part.area >= min_visible * box.area
    )


def cut_out(
    example: Example, top: int, left: int, height: int, width: int, min_visible: float
) -> Example:
    """A part of the image, which lies wholly inside it, with the parts of the boxes in it."""
    image = example.image[top : top + height, left : left + width]
    moved = transform_boxes(example.boxes, down=-top, right=-left)
    return example.with_image(image, clip_to_image(moved, height, width, min_visible))


def check_box(box: Box, frame: Size | None) -> None:
    """Checks a box without its image. Raises Reject: box_not_finite, box_inverted, box_outside."""
    if not all(map(math.isfinite, (box.ymin, box.xmin, box.ymax, box.xmax))):
        raise Reject("box_not_finite", str(box))
    if box.xmin > box.xmax or box.ymin > box.ymax:
        raise Reject("box_inverted", str(box))
    if frame and frame not in (FRACTIONS, UPRIGHT_FRACTIONS):
        _check_inside(box, frame)


def convert_boxes(
    boxes: Iterable[Box], frame: Size | None, stored: tuple[int, int], orientation: int
) -> tuple[Box, ...]:
    """The boxes of a source in pixels of the upright image, clipped to it.

    `frame` is the size that they are given for, FRACTIONS, UPRIGHT_FRACTIONS, or None for the
    stored image. `stored` is the size of the image before it is turned. `orientation` is EXIF's, 1
    to 8. Any other value means upright, as for decoders. Raises Reject: size_mismatch, box_outside.
    """
    upright = stored[::-1] if orientation in (5, 6, 7, 8) else stored
    if frame == FRACTIONS:
        boxes = [box.transform(*stored) for box in boxes]
    elif frame == UPRIGHT_FRACTIONS:
        boxes = [box.transform(*upright) for box in boxes]
    elif frame is not None and frame not in (stored, upright):
        raise Reject(
            "size_mismatch",
            f"annotated as {frame[1]:g}x{frame[0]:g}, "
            f"but the image has {stored[1]}x{stored[0]} pixels",
        )
    found: Boxes = tuple(boxes)
    if frame in (None, FRACTIONS, stored):
        if orientation in (5, 6, 7, 8):
            found = transpose_boxes(found)
        if orientation in (2, 3, 6, 7):
            found = transform_boxes(found, x_factor=-1, right=upright[1])
        if orientation in (3, 4, 7, 8):
            found = transform_boxes(found, y_factor=-1, down=upright[0])
    return tuple(_clip(box, upright) for box in found or ())


def _clip(box: Box, size: Size) -> Box:
    _check_inside(box, size)
    if (clipped := box.clip(*size)) is None:
        height, width = size
        raise Reject("box_outside", f"{box} leaves nothing inside {width:g}x{height:g} pixels")
    return clipped


def _check_inside(box: Box, size: Size) -> None:
    height, width = size
    if (
        min(box.ymin, box.xmin) < -_TOLERANCE_PIXELS
        or box.ymax > height + _TOLERANCE_PIXELS
        or box.xmax > width + _TOLERANCE_PIXELS
    ):
        raise Reject("box_outside", f"{box} in an image of {width:g}x{height:g} pixels")
