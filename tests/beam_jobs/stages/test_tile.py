"""The stage tile."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from pydantic import ValidationError

from beam_jobs.stages.stage import Box, Example, Skip
from beam_jobs.stages.tile import Tile, tile

from .marked import corners, marked, white_part


@pytest.mark.parametrize(
    "height, width, overlap", [(100, 100, 0), (100, 101, 0), (300, 150, 30), (64, 200, 63)]
)
def test_every_pixel_is_in_a_tile_and_all_tiles_have_one_size(height, width, overlap):
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    tiles = tile(
        Example("a.png", "a", b"the file", image), Tile(height=64, width=64, overlap=overlap)
    )
    rebuilt = np.zeros_like(image)
    for each in tiles:
        left, top = map(int, each.key.removeprefix("a.png#").split(","))
        assert each.image.shape == (64, 64, 3)
        assert not each.is_original
        rebuilt[top : top + 64, left : left + 64] = each.image
    assert (rebuilt == image).all()
    assert len({each.key for each in tiles}) == len(tiles)


def test_neighbours_overlap_by_so_much_at_least():
    image = np.zeros((10, 250, 3), np.uint8)
    tiles = tile(Example("a.png", "a", b"", image), Tile(height=10, width=100, overlap=9))
    assert [each.key for each in tiles] == ["a.png#0,0", "a.png#91,0", "a.png#150,0"]


def test_an_image_no_larger_than_a_tile_keeps_its_own_bytes_and_its_key():
    before = Example("a.png", "a", b"the file", np.zeros((64, 50, 3), np.uint8))
    assert tile(before, Tile(height=64, width=64)) == [before]


def test_along_a_shorter_side_the_tile_is_shorter():
    tiles = tile(
        Example("a.png", "a", b"", np.zeros((40, 100, 3), np.uint8)), Tile(height=64, width=64)
    )
    assert [each.image.shape for each in tiles] == [(40, 64, 3), (40, 64, 3)]


def test_a_box_is_where_the_pixels_are_in_every_tile():
    tiles = tile(
        marked(200, 200, (70, 60, 110, 120)),
        Tile(height=100, width=100, overlap=60, min_visible=0.01),
    )
    with_white = [each for each in tiles if each.image.any()]
    assert len(with_white) > 4
    for each in with_white:
        assert corners(each.boxes[0]) == white_part(each.image)
    assert all(each.boxes == () for each in tiles if not each.image.any())


@pytest.mark.parametrize(
    "min_visible, keys", [(0.5, ["wall.png#0,0", "wall.png#100,0"]), (0.51, [])]
)
def test_a_tile_with_too_little_of_a_box_does_not_have_it(min_visible, keys):
    """The box lies half in each tile."""
    tiles = tile(
        marked(100, 200, (0, 90, 10, 110)), Tile(height=100, width=100, min_visible=min_visible)
    )
    assert [each.key for each in tiles if each.boxes] == keys


def test_tiles_without_boxes_can_be_left_out():
    tiles = tile(marked(100, 200, (10, 10, 20, 20)), Tile(height=100, width=100, keep_empty=False))
    assert [each.key for each in tiles] == ["wall.png#0,0"]


@pytest.mark.parametrize("width", [100, 200])
def test_an_image_without_any_box_is_skipped_then(width):
    empty = dataclasses.replace(marked(100, width, (10, 10, 20, 20)), boxes=())
    with pytest.raises(Skip, match="no_boxes"):
        tile(empty, Tile(height=100, width=100, keep_empty=False))


def test_tiles_for_classification_have_the_label_of_their_image():
    tiles = tile(
        Example("a.png", "rust", b"", np.zeros((100, 200, 3), np.uint8)),
        Tile(height=100, width=100, keep_empty=False),
    )
    assert [(each.label, each.boxes) for each in tiles] == [("rust", None)] * 2


def test_what_a_box_says_beside_its_place_stays():
    before = marked(100, 200, (10, 10, 20, 20)).with_boxes(
        [Box(10, 110, 20, 120, "cell", is_difficult=True)]
    )
    assert tile(before, Tile(height=100, width=100))[1].boxes == (
        Box(10, 10, 20, 20, "cell", is_difficult=True),
    )


def test_an_overlap_of_a_whole_tile_is_refused():
    with pytest.raises(
        ValidationError,
        match=r"overlap must be less than the shorter side of a tile \(64\), got 64",
    ):
        Tile(height=64, width=100, overlap=64)
