"""Boxes around outlines that are not upright rectangles: polygons and rotated rectangles."""

from __future__ import annotations

import math
from collections.abc import Sequence

from beam_jobs.stages.boxes import Size
from beam_jobs.stages.stage import Box, Reject

Point = tuple[float, float]  # x, y
Corners = tuple[float, float, float, float]  # ymin, xmin, ymax, xmax


def enclose(points: Sequence[Point]) -> Corners:
    """The smallest upright rectangle around some points.

    Raises Reject: malformed, box_not_finite.
    """
    if len(points) < 3:
        raise Reject("malformed", f"a polygon needs three points, and this one has {len(points)}")
    xs, ys = zip(*points, strict=True)
    if not all(map(math.isfinite, (*xs, *ys))):  # min and max ignore NaN
        raise Reject("box_not_finite", "a polygon with a point that is not finite")
    return min(ys), min(xs), max(ys), max(xs)


def enclose_rotated(corners: Corners, degrees: float, pivot: Point) -> Corners:
    """The smallest upright rectangle around a rectangle that is turned clockwise around a point.

    Args:
      corners: the rectangle before it is turned, in pixels.
      degrees: the angle.
      pivot: the point that stays in its place.

    Raises Reject: box_not_finite.
    """
    if not math.isfinite(degrees):
        raise Reject("box_not_finite", f"a rotation by {degrees} degrees")
    ymin, xmin, ymax, xmax = corners
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    moved = [(x - pivot[0], y - pivot[1]) for x in (xmin, xmax) for y in (ymin, ymax)]
    return enclose(
        [(pivot[0] + x * cosine - y * sine, pivot[1] + x * sine + y * cosine) for x, y in moved]
    )


def clip_outline(box: Box, size: Size | None) -> Box:
    """The part of a box inside an image of a known size. Tools let a person turn an object beyond.

    A box that is outside of the image as a whole stays as it is, so that its check fails.
    """
    return box if size is None else box.clip(*size) or box
