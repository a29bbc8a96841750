"""Boxes: functions that move and rename them, and the forms that sources give them in.

Shared by the stages and the sources. Not a stage. All lengths are pixels. `None` stands for the
boxes of an example for classification and stays None.

An image that EXIF turns has two sizes, and tools differ in which of the two pictures they show. If
the annotation gives the size of one of them alone, this one was drawn on. Otherwise the frame says
what is known: browsers and Ultralytics YOLO show the upright picture, and TensorFlow's decoders
give the stored one. If nothing is known, the image is rejected: each reading would be a guess.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

from beam_jobs.stages.stage import Box, BoxFrame, Example, Reject, Skip

FRACTIONS = (1.0, 1.0)
"""The size in the frame of boxes whose coordinates are fractions of the image."""

_TOLERANCE_PIXELS = 1.0
"""Maximum distance by which a box may leave any image, and is clipped. Tools round, and Pascal VOC
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


def rename_classes(
    example: Example, map_class: Callable[[str, Any], str | None], parameters: Any
) -> Example:
    """The example with new names of classes. A class that gets None for a name is dropped.

    Raises Skip: class, if it is the class of the image itself.
    """
    if example.boxes is None:
        if (label := map_class(example.label, parameters)) is None:
            raise Skip("class")
        return example if label == example.label else example.replace(label=label)
    named = [(box, map_class(box.label, parameters)) for box in example.boxes]
    kept = [dataclasses.replace(box, label=label) for box, label in named if label is not None]
    return example.with_boxes(kept)


def check_box(box: Box, frame: BoxFrame) -> None:
    """Checks a box without its image. Raises Reject: box_not_finite, box_inverted, box_outside."""
    if not all(map(math.isfinite, (box.ymin, box.xmin, box.ymax, box.xmax))):
        raise Reject("box_not_finite", str(box))
    if box.xmin > box.xmax or box.ymin > box.ymax:
        raise Reject("box_inverted", str(box))
    if frame.size and frame.size != FRACTIONS and frame.outside != "drop":
        _check_inside(box, frame.size, frame)


def convert_boxes(
    boxes: Iterable[Box], frame: BoxFrame, stored: tuple[int, int], orientation: int
) -> tuple[Box, ...]:
    """The boxes of a source in pixels of the upright image, clipped to it.

    `stored` is the size of the image before it is turned. `orientation` is EXIF's, 1 to 8. Any
    other value means upright, as for decoders. Raises Reject: size_mismatch, box_outside,
    unclear_orientation.
    """
    is_sideways = orientation in (5, 6, 7, 8)
    upright = stored[::-1] if is_sideways else stored
    found: Boxes = tuple(boxes)
    drawn_on = _find_drawn_on(frame, stored, upright, orientation) if found else "stored"
    if frame.size == FRACTIONS:
        found = transform_boxes(found, *(upright if drawn_on == "upright" else stored))
    if drawn_on == "stored":
        if is_sideways:
            found = tuple(
                dataclasses.replace(box, ymin=box.xmin, xmin=box.ymin, ymax=box.xmax, xmax=box.ymax)
                for box in found or ()
            )
        if orientation in (2, 3, 6, 7):
            found = transform_boxes(found, x_factor=-1, right=upright[1])
        if orientation in (3, 4, 7, 8):
            found = transform_boxes(found, y_factor=-1, down=upright[0])
    clipped = (_clip(box, upright, frame) for box in found or ())
    return tuple(box for box in clipped if box is not None)


def is_unclear(frame: BoxFrame, stored: tuple[int, int], orientation: int) -> bool:
    """Returns whether boxes may be for the upright or for the stored image, and nothing tells."""
    turns = orientation in range(2, 9)
    is_sideways = orientation in (5, 6, 7, 8) and stored[0] != stored[1]
    has_size = frame.size not in (None, FRACTIONS)
    return turns and frame.drawn_on is None and not (has_size and is_sideways)


def _find_drawn_on(
    frame: BoxFrame, stored: tuple[int, int], upright: tuple[int, int], orientation: int
) -> Literal["upright", "stored"]:
    size = None if frame.size == FRACTIONS else frame.size
    if size is not None and size not in (stored, upright):
        fault = f"annotated as {size[1]:g}x{size[0]:g}"
        detail = f"{fault}, but the image has {stored[1]}x{stored[0]} pixels"
        cause = ". Width and height seem to be swapped" if size == stored[::-1] else ""
        raise Reject("size_mismatch", detail + cause)
    if is_unclear(frame, stored, orientation):
        fault = "and nothing tells whether its boxes were drawn on the turned picture"
        cure = "If so, set preprocess.source.boxes.drawn_on: upright, otherwise stored"
        detail = f"EXIF turns the image (orientation {orientation}), {fault}. {cure}"
        raise Reject("unclear_orientation", detail)
    if size is not None and stored != upright:
        return "upright" if size == upright else "stored"
    return frame.drawn_on or "stored"


def _clip(box: Box, size: Size, frame: BoxFrame) -> Box | None:
    """The part of a box in its image. None if the frame says to drop a box that leaves it."""
    try:
        _check_inside(box, size, frame)
        if clipped := box.clip(*size):
            return clipped
        raise Reject("box_outside", f"{box} leaves nothing inside {size[1]:g}x{size[0]:g} pixels")
    except Reject:
        if frame.outside == "drop":
            return None
        raise


def _check_inside(box: Box, size: Size, frame: BoxFrame) -> None:
    height, width = size
    share = frame.max_outside if frame.outside == "clip" else 0.0
    down, right = (max(_TOLERANCE_PIXELS, share * side) for side in size)
    is_before = min(box.ymin + down, box.xmin + right) < 0
    if is_before or box.ymax > height + down or box.xmax > width + right:
        limit = f"at most {share:.0%} of a side may be outside" if share else "it must be inside"
        place = f"{box} in an image of {width:g}x{height:g} pixels"
        raise Reject("box_outside", f"{place}; {limit} (preprocess.source.boxes)")
