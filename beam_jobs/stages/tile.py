"""Cuts large images into overlapping tiles of one size, each an example with the boxes in it.

The last tile of a row or column ends where the image ends, and overlaps its neighbour by more. The
key of a tile is the key of the image with the position of the tile's upper left corner:
`plan.png#512,0` begins 512 pixels from the left and 0 from above. An image that is no larger than
one tile stays as it is, to the byte. Along a side of the image that is shorter than a tile, the
tile is as short as the image. For classification every tile has the label of its image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pydantic
from pydantic import Field

from beam_jobs.stages.boxes import cut_out
from beam_jobs.stages.stage import Example, Skip, parameters

if TYPE_CHECKING:
    import tensorflow as tf


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
            rule = f"overlap must be less than the shorter side of a tile ({side})"
            raise ValueError(f"{rule}, got {self.overlap}")
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
    size = min(parameters.height, height), min(parameters.width, width)
    part = cut_out(example, top, left, *size, parameters.min_visible)
    return part.replace(key=f"{example.key}#{left},{top}")


# The stage in TensorFlow


def serve(image_HWC: tf.Tensor, parameters: Tile) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns all tiles of an image, uint8 [T, h, w, C], row by row, and their windows [T, 4]."""
    import tensorflow as tf

    def compute_starts(length: tf.Tensor, tile_length: int) -> tf.Tensor:
        last = tf.maximum(0, length - tile_length)
        return tf.concat([tf.range(0, last, tile_length - parameters.overlap), [last]], axis=0)

    size = tf.shape(image_HWC)[:2]
    tile_size = tf.minimum(size, (parameters.height, parameters.width))
    tops = compute_starts(size[0], parameters.height)
    lefts = compute_starts(size[1], parameters.width)
    corners_T2 = tf.reshape(tf.stack(tf.meshgrid(tops, lefts, indexing="ij"), axis=-1), [-1, 2])

    def cut(corner: tf.Tensor) -> tf.Tensor:
        (top, left), (height, width) = tf.unstack(corner), tf.unstack(tile_size)
        return image_HWC[top : top + height, left : left + width]

    spec = tf.TensorSpec([None, None, image_HWC.shape[2]], image_HWC.dtype)
    tiles = tf.map_fn(cut, corners_T2, fn_output_signature=spec)
    edges_T4 = tf.concat([corners_T2, corners_T2 + tile_size], axis=1)
    windows_T4 = tf.cast(edges_T4, tf.float32) / tf.cast(tf.tile(size, [2]), tf.float32)
    return tiles, windows_T4
