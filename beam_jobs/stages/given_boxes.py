"""Converts boxes from the form that a source gives to pixels of the upright image.

Called by the sources and by `decode`. Annotations belong to the image as it is stored: the tools
that draw boxes, and TensorFlow's decoders, ignore EXIF's orientation. There is one exception. If an
annotation gives the size of the image, and it is that of the upright and not of the stored image,
the boxes were drawn on the upright image. If the two sizes are equal, the boxes count as drawn on
the stored image. A source whose tool turns images says so with UPRIGHT_FRACTIONS.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from beam_jobs.stages.stage import Box, Reject

FRACTIONS = (1.0, 1.0)
"""The frame of boxes whose coordinates are fractions of the image as it is stored."""
UPRIGHT_FRACTIONS = (0.0, 0.0)
"""The frame of boxes whose coordinates are fractions of the upright image.

Browsers and Ultralytics YOLO turn an image as EXIF says before anything is drawn on it.
"""

_TOLERANCE_PIXELS = 1.0
"""Maximum distance by which a box may leave the image, and is clipped. Tools round, and Pascal VOC
counts pixels from 1."""

Size = tuple[float, float]  # height, width


def check_box(box: Box, frame: Size | None) -> None:
    """Checks a box as far as possible without the image.

    Raises:
      Reject: box_not_finite, box_inverted, box_outside.
    """
    if not all(map(math.isfinite, (box.ymin, box.xmin, box.ymax, box.xmax))):
        raise Reject("box_not_finite", str(box))
    if box.xmin > box.xmax or box.ymin > box.ymax:
        raise Reject("box_inverted", str(box))
    if frame and frame not in (FRACTIONS, UPRIGHT_FRACTIONS):
        _check_inside(box, frame)


def convert_boxes(
    boxes: Iterable[Box], frame: Size | None, stored: tuple[int, int], orientation: int
) -> tuple[Box, ...]:
    """The boxes in pixels of the upright image, clipped to it.

    Args:
      boxes: the boxes as the source gives them.
      frame: height and width that they are given for. FRACTIONS or UPRIGHT_FRACTIONS for fractions,
        None for the stored image.
      stored: height and width of the image before it is turned.
      orientation: EXIF's, 1 to 8. Any other value means upright, as for decoders.

    Raises:
      Reject: size_mismatch, box_outside.
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
    if orientation in _ORIENTATION_TRANSFORMS and frame in (None, FRACTIONS, stored):
        boxes = [_rotate(box, stored, orientation) for box in boxes]
    return tuple(_clip(box, upright) for box in boxes)


# from a point (x, y) of a stored image of height h and width w to the upright one
_ORIENTATION_TRANSFORMS = {
    2: lambda x, y, h, w: (w - x, y),
    3: lambda x, y, h, w: (w - x, h - y),
    4: lambda x, y, h, w: (x, h - y),
    5: lambda x, y, h, w: (y, x),
    6: lambda x, y, h, w: (h - y, x),
    7: lambda x, y, h, w: (h - y, w - x),
    8: lambda x, y, h, w: (y, w - x),
}


def _rotate(box: Box, stored: Size, orientation: int) -> Box:
    xs, ys = zip(
        *(
            _ORIENTATION_TRANSFORMS[orientation](x, y, *stored)
            for x, y in ((box.xmin, box.ymin), (box.xmax, box.ymax))
        ),
        strict=True,
    )
    return dataclasses.replace(box, ymin=min(ys), xmin=min(xs), ymax=max(ys), xmax=max(xs))


def _clip(box: Box, size: Size) -> Box:
    """Raises Reject: box_outside."""
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
