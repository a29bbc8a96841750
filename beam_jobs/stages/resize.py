"""Brings every image to one size. An image that has it already stays as it is, to the byte."""

from __future__ import annotations

from pydantic import Field

from beam_jobs.stages.stage import Example, parameters


@parameters
class Resize:
    height: int = Field(ge=1, le=16384)
    """Of the image that comes out, in pixels. Proportions are not kept."""
    width: int = Field(ge=1, le=16384)


def resize(example: Example, parameters: Resize) -> Example:
    """Averages over areas to shrink, which leaves no aliasing, and interpolates linearly to enlarge."""
    import cv2

    height, width, channels = example.image.shape
    if (height, width) == (parameters.height, parameters.width):
        return example
    shrinks = parameters.height * parameters.width < height * width
    resized = cv2.resize(example.image, (parameters.width, parameters.height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
    return example.with_image(resized.reshape(parameters.height, parameters.width, channels))
