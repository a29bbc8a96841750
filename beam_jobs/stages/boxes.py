"""Functions that move boxes along with pixels, shared by the stages that move pixels. Not a stage.

All lengths are pixels. `None` stands for the boxes of an example for classification and stays None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from beam_jobs.stages.stage import Box, Example

Boxes = Sequence[Box] | None


def scaled(boxes: Boxes, y_factor: float, x_factor: float) -> tuple[Box, ...] | None:
    """The boxes after the image was stretched."""
    if boxes is None:
        return None
    return tuple(
        dataclasses.replace(
            box,
            ymin=box.ymin * y_factor,
            xmin=box.xmin * x_factor,
            ymax=box.ymax * y_factor,
            xmax=box.xmax * x_factor,
        )
        for box in boxes
    )


def shifted(boxes: Boxes, down: float, right: float) -> tuple[Box, ...] | None:
    """The boxes after a margin above and to the left of the image was added or removed."""
    if boxes is None:
        return None
    return tuple(
        dataclasses.replace(
            box,
            ymin=box.ymin + down,
            xmin=box.xmin + right,
            ymax=box.ymax + down,
            xmax=box.xmax + right,
        )
        for box in boxes
    )


def flipped_horizontally(boxes: Boxes, width: int) -> tuple[Box, ...] | None:
    return (
        None
        if boxes is None
        else tuple(
            dataclasses.replace(box, xmin=width - box.xmax, xmax=width - box.xmin) for box in boxes
        )
    )


def flipped_vertically(boxes: Boxes, height: int) -> tuple[Box, ...] | None:
    return (
        None
        if boxes is None
        else tuple(
            dataclasses.replace(box, ymin=height - box.ymax, ymax=height - box.ymin)
            for box in boxes
        )
    )


def transposed(boxes: Boxes) -> tuple[Box, ...] | None:
    """The boxes after rows became columns."""
    if boxes is None:
        return None
    return tuple(
        dataclasses.replace(box, ymin=box.xmin, xmin=box.ymin, ymax=box.xmax, xmax=box.ymax)
        for box in boxes
    )


def clipped(
    boxes: Boxes, height: int, width: int, min_visible: float = 0.0
) -> tuple[Box, ...] | None:
    """The parts of the boxes that lie in the image.

    Boxes outside the image are dropped, and boxes of which a smaller share than `min_visible` is
    left.
    """
    if boxes is None:
        return None
    parts = [(box, _part_inside(box, height, width)) for box in boxes]
    return tuple(
        part for box, part in parts if part is not None and part.area >= min_visible * box.area
    )


def _part_inside(box: Box, height: int, width: int) -> Box | None:
    ymin, xmin, ymax, xmax = (
        max(box.ymin, 0.0),
        max(box.xmin, 0.0),
        min(box.ymax, float(height)),
        min(box.xmax, float(width)),
    )
    if ymin >= ymax or xmin >= xmax:
        return None
    if (ymin, xmin, ymax, xmax) == (box.ymin, box.xmin, box.ymax, box.xmax):
        return box
    return dataclasses.replace(box, ymin=ymin, xmin=xmin, ymax=ymax, xmax=xmax)


def cut_out(
    example: Example, top: int, left: int, height: int, width: int, min_visible: float
) -> Example:
    """A part of the image, which lies wholly inside it, with the parts of the boxes in it."""
    image = example.image[top : top + height, left : left + width]
    boxes = clipped(shifted(example.boxes, -top, -left), height, width, min_visible)
    return dataclasses.replace(example.with_image(image), boxes=boxes)
