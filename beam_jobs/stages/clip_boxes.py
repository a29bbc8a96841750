"""Cuts boxes at the edge of the image, and drops those that are too small or too far outside.

No pixel changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from beam_jobs.stages.boxes import clip_to_image
from beam_jobs.stages.stage import Example, parameters


@parameters
class ClipBoxes:
    min_visible: float = Field(0.0, ge=0, le=1)
    """Smallest share of a box's area that must lie in the image."""
    min_side: float = Field(0.0, ge=0)
    """Minimum length of the shorter side of a box, once it is cut, in pixels."""
    min_area: float = Field(0.0, ge=0)
    """Minimum area of a box, once it is cut, in pixels."""


def clip_boxes(example: Example, parameters: ClipBoxes) -> Example:
    """Keeps an example that loses all its boxes, because it is a negative example for a detector.

    `filter: {min_boxes: 1}` removes such examples.
    """
    height, width, _ = example.shape
    boxes = clip_to_image(example.boxes, height, width, parameters.min_visible) or ()
    large = [box for box in boxes if box.area >= parameters.min_area]
    return example.with_boxes([box for box in large if box.shorter_side >= parameters.min_side])


def check(parameters: ClipBoxes, task: str, class_names: Sequence[str]) -> str | None:
    if task == "detection":
        return None
    return "is for detection, and the source has labels without boxes. Remove the stage."
