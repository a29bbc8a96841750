"""Stores images whose pixels a stage has changed as PNG or JPEG.

Without this stage they are PNG, which has no loss and is large for photographs. A served model does
not repeat the loss of JPEG, so its input differs from that of the training: of small photographs by
1.9 of 255 in the mean with `quality: 95`, and by 0.4 with `quality: 100, sharp_colors: true`, which
takes three quarters of the size of PNG. An image whose pixels no stage has changed keeps the bytes
of its file, whatever this stage asks for.
"""

from __future__ import annotations

from typing import Literal

import pydantic
from pydantic import Field

from beam_jobs.stages.stage import Example, parameters


@parameters
class Encode:
    format: Literal["png", "jpeg"]
    """png: without loss. jpeg: about a tenth of the size for photographs."""
    quality: int = Field(90, ge=1, le=100)
    """Quality of jpeg."""
    sharp_colors: bool = False
    """jpeg only: stores colours as finely as brightness (4:4:4), and not at half the resolution as
    cameras do (4:2:0)."""

    @pydantic.model_validator(mode="after")
    def _validate(self) -> Encode:
        if self.format == "png" and (self.quality, self.sharp_colors) != (90, False):
            raise ValueError("quality and sharp_colors are for the format jpeg, got them with png")
        return self


def encode(example: Example, parameters: Encode) -> Example:
    """Encodes to the same bytes on every attempt: both encoders depend on the pixels alone."""
    if example.is_original or parameters.format == "png":
        return example
    import numpy as np
    import simplejpeg

    colors, subsampling = "RGB", "444" if parameters.sharp_colors else "420"
    if example.shape[2] == 1:
        colors, subsampling = "GRAY", "Gray"
    data = simplejpeg.encode_jpeg(
        np.ascontiguousarray(example.image), parameters.quality, colors, subsampling, fastdct=False
    )
    return example.replace(encoded=data, is_original=True)
