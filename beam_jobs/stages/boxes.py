"""Functions that move boxes along with pixels, shared by the stages that move pixels. Not a stage.

All lengths are pixels. `None` stands for the boxes of an example for classification and stays None.
"""

from __future__ import annotations

import dataclasses

from beam_jobs.stages.stage import Box, Example

Boxes = tuple[Box, ...] | None


def transform_boxes(
    boxes: Boxes, y_factor: float = 1, x_factor: float = 1, down: float = 0, right: float = 0
) -> Boxes:
    """The boxes after their image was stretched, then moved. See `Box.transform`."""
    if boxes is None:
        return None
    return tuple(box.transform(y_factor, x_factor, down, right) for box in boxes)


def flip_boxes_horizontally(boxes: Boxes, width: int) -> Boxes:
    return transform_boxes(boxes, x_factor=-1, right=width)


def flip_boxes_vertically(boxes: Boxes, height: int) -> Boxes:
    return transform_boxes(boxes, y_factor=-1, down=height)


def transpose_boxes(boxes: Boxes) -> Boxes:
    """The boxes after rows became columns."""
    if boxes is None:
        return None
    return tuple(
        dataclasses.replace(box, ymin=box.xmin, xmin=box.ymin, ymax=box.xmax, xmax=box.ymax)
        for box in boxes
    )


def clip_to_image(boxes: Boxes, height: int, width: int, min_visible: float = 0.0) -> Boxes:
    """The parts of the boxes that lie in the image.

    Boxes outside the image are dropped, and boxes of which a smaller share than `min_visible` is
    left.
    """
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
