"""Keeps the examples that match its conditions and skips all other examples.

Skipped examples are counted by reason and count towards no budget. In an example for detection,
`classes` keeps the boxes of these classes and drops the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pydantic
from pydantic import Field

from beam_jobs.stages.boxes import rename_classes
from beam_jobs.stages.stage import Example, Names, Skip, find_unknown_class, parameters


@parameters
class Filter:
    min_side: int | None = Field(None, ge=1)
    """Minimum length of the shorter side of the image, in pixels."""
    max_side: int | None = Field(None, ge=1)
    """Maximum length of the longer side of the image, in pixels."""
    min_area: int | None = Field(None, ge=1)
    """Minimum area of the image, in pixels."""
    max_area: int | None = Field(None, ge=1)
    """Maximum area of the image, in pixels."""
    min_aspect: float | None = Field(None, gt=0)
    """Minimum of width divided by height."""
    max_aspect: float | None = Field(None, gt=0)
    """Maximum of width divided by height."""
    classes: Names | None = None
    """The classes to keep."""
    min_boxes: int | None = Field(None, ge=1)
    """Minimum number of boxes of an example, once `classes` has been applied. For detection
    only."""

    @pydantic.model_validator(mode="after")
    def _validate(self) -> Filter:
        if all(value is None for value in vars(self).values()):
            raise ValueError(f"needs at least one of {', '.join(vars(self))}")
        for name in ("side", "area", "aspect"):
            low, high = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if low is not None and high is not None and low > high:
                raise ValueError(f"min_{name} must be at most max_{name} ({high:g}), got {low:g}")
        return self


def filter(example: Example, parameters: Filter) -> Example:
    """Raises Skip: class, too_small, too_large, aspect, too_few_boxes."""
    if parameters.classes is not None:
        example = rename_classes(example, map_class, parameters)
    height, width, _ = example.shape
    area, aspect = height * width, width / height
    if min(height, width) < (parameters.min_side or 0) or area < (parameters.min_area or 0):
        raise Skip("too_small")
    max_side, max_area = parameters.max_side or math.inf, parameters.max_area or math.inf
    if max(height, width) > max_side or area > max_area:
        raise Skip("too_large")
    if not (parameters.min_aspect or 0) <= aspect <= (parameters.max_aspect or math.inf):
        raise Skip("aspect")
    if example.boxes is not None and len(example.boxes) < (parameters.min_boxes or 0):
        raise Skip("too_few_boxes")
    return example


def map_class(name: str, parameters: Filter) -> str | None:
    return name if parameters.classes is None or name in parameters.classes else None


def check(parameters: Filter, task: str, class_names: Sequence[str]) -> str | None:
    if parameters.min_boxes is not None and task != "detection":
        return "min_boxes is for detection, and the source has labels without boxes. Remove it."
    return find_unknown_class(parameters.classes or (), class_names)
