"""Brings out detail in dark or flat images, such as X-rays, by spreading brightness locally.

CLAHE, contrast-limited adaptive histogram equalisation (Zuiderveld, Graphics Gems IV, 1994),
spreads brightness in each part of the image by itself. Colours keep their hue.
"""

from __future__ import annotations

from pydantic import Field

from beam_jobs.stages.stage import Example, parameters


@parameters
class Equalize:
    limit: float = Field(2.0, ge=1, le=40)
    """Maximum growth of contrast, above which noise would grow: 1 changes little, 4 much."""
    parts: int = Field(8, ge=1, le=64)
    """Number of parts along each side that are equalised separately. 1 is the whole image at
    once."""


def equalize(example: Example, parameters: Equalize) -> Example:
    """Equalises the grey of a grey image, and the lightness L of CIELAB of an RGB image."""
    import cv2

    clahe = cv2.createCLAHE(
        clipLimit=parameters.limit, tileGridSize=(parameters.parts, parameters.parts)
    )
    if example.shape[2] == 1:
        return example.with_image(clahe.apply(example.image).reshape(example.shape))
    lab = cv2.cvtColor(example.image, cv2.COLOR_RGB2LAB)
    lab[:, :, 0] = clahe.apply(lab[:, :, 0])
    return example.with_image(cv2.cvtColor(lab, cv2.COLOR_LAB2RGB))
