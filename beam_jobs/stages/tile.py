"""Cuts large images into overlapping tiles of one size, each an example with the boxes that are in it.

The last tile of a row or column ends where the image ends, and overlaps its neighbour by more. A tile's key is the
image's, with the place of its left upper corner: `plan.png#512,0` begins 512 pixels from the left, 0 from above. An image
that is no larger than one tile stays as it is, to the byte; along a side that is shorter than a tile, so is the tile.
For classification every tile has the label of its image.
"""

from __future__ import annotations

import dataclasses

import pydantic
from pydantic import Field

from beam_jobs.stages.boxes import cut_out
from beam_jobs.stages.stage import Example, Skip, parameters


@parameters
class Tile:
    height: int = Field(ge=1, le=16384)
    """Of a tile, in pixels."""
    width: int = Field(ge=1, le=16384)
    """Of a tile, in pixels."""
    overlap: int = Field(0, ge=0)
    """By how many pixels neighbours overlap, at least: as much as the largest object, and each is whole somewhere."""
    min_visible: float = Field(0.5, gt=0, le=1)
    """The share of a box's area that a tile must hold; otherwise the tile does not have the box."""
    keep_empty: bool = True
    """Whether tiles without any box are kept; for detection."""

    @pydantic.model_validator(mode="after")
    def _fits(self) -> Tile:
        if self.overlap >= min(self.height, self.width):
            raise ValueError(f"overlap must be less than the shorter side of a tile ({min(self.height, self.width)}), got {self.overlap}")
        return self


def tile(example: Example, parameters: Tile) -> Example | list[Example]:
    """Raises Skip: no_boxes, where no tile has a box and empty ones are not wanted."""
    height, width, _ = example.shape
    tops = _starts(height, parameters.height, parameters.overlap)
    lefts = _starts(width, parameters.width, parameters.overlap)
    is_cut = len(tops) * len(lefts) > 1
    tiles = [_tile(example, top, left, parameters) for top in tops for left in lefts] if is_cut else [example]
    if not parameters.keep_empty:
        tiles = [each for each in tiles if each.boxes is None or each.boxes]
    if not tiles:
        raise Skip("no_boxes")
    return tiles


def _starts(length: int, tile_length: int, overlap: int) -> list[int]:
    """Where the tiles along one side begin."""
    last = max(0, length - tile_length)
    return [*range(0, last, tile_length - overlap), last]


def _tile(example: Example, top: int, left: int, parameters: Tile) -> Example:
    height, width, _ = example.shape
    part = cut_out(example, top, left, min(parameters.height, height), min(parameters.width, width), parameters.min_visible)
    return dataclasses.replace(part, key=f"{example.key}#{left},{top}")
