"""Cuts large images into overlapping tiles of one size, each an example with the boxes in it.

The last tile of a row or column ends where the image ends, and overlaps its neighbour by more. The
key of a tile is the key of the image with the position of the tile's upper left corner:
`plan.png#512,0` begins 512 pixels from the left and 0 from above. An image that is no larger than
one tile stays as it is, to the byte. Along a side of the image that is shorter than a tile, the
tile is as short as the image. For classification every tile has the label of its image.
"""

from __future__ import annotations

import pydantic
from pydantic import Field

from beam_jobs.stages.boxes import cut_out
from beam_jobs.stages.stage import Example, Skip, parameters


@parameters
class Tile:
    height: int = Field(ge=1, le=16384)
    """Height of a tile, in pixels."""
    width: int = Field(ge=1, le=16384)
    """Width of a tile, in pixels."""
    overlap: int = Field(0, ge=0)
    """Minimum number of pixels by which neighbours overlap. If it is as large as the largest
    object, each object is whole in some tile."""
    min_visible: float = Field(0.5, gt=0, le=1)
    """Smallest share of a box's area that a tile must hold to have the box."""
    keep_empty: bool = True
    """Keeps tiles without any box. For detection."""

    @pydantic.model_validator(mode="after")
    def _validate(self) -> Tile:
        if self.overlap >= (side := min(self.height, self.width)):
            raise ValueError(
                f"overlap must be less than the shorter side of a tile ({side}), got {self.overlap}"
            )
        return self


def tile(example: Example, parameters: Tile) -> Example | list[Example]:
    """Raises Skip: no_boxes, if no tile has a box and `keep_empty` is false."""
    height, width, _ = example.shape
    tops = _compute_starts(height, parameters.height, parameters.overlap)
    lefts = _compute_starts(width, parameters.width, parameters.overlap)
    tiles = [example]
    if len(tops) * len(lefts) > 1:
        tiles = [_cut_tile(example, top, left, parameters) for top in tops for left in lefts]
    if not parameters.keep_empty:
        tiles = [each for each in tiles if each.boxes is None or each.boxes]
    if not tiles:
        raise Skip("no_boxes")
    return tiles


def _compute_starts(length: int, tile_length: int, overlap: int) -> list[int]:
    last = max(0, length - tile_length)
    return [*range(0, last, tile_length - overlap), last]


def _cut_tile(example: Example, top: int, left: int, parameters: Tile) -> Example:
    height, width, _ = example.shape
    tile_height, tile_width = min(parameters.height, height), min(parameters.width, width)
    part = cut_out(example, top, left, tile_height, tile_width, parameters.min_visible)
    return part.replace(key=f"{example.key}#{left},{top}")
