"""The stage resize."""

from __future__ import annotations

import numpy as np
import pytest

from beam_jobs.stages.resize import Resize, resize
from beam_jobs.stages.stage import Box, Example

from .marked import corners, marked, white_part

MODES = ["stretch", "letterbox", "crop"]


def example(image: np.ndarray) -> Example:
    return Example("cat/1.png", "cat", b"the file", image)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("height, width", [(4, 6), (40, 60), (40, 6), (1, 1), (300, 2)])
def test_every_image_gets_the_size_and_keeps_its_channels(height, width, channels, mode):
    image = np.random.default_rng(0).integers(0, 256, (20, 30, channels), dtype=np.uint8)
    resized = resize(example(image), Resize(height=height, width=width, mode=mode))
    assert resized.image.shape == (height, width, channels)
    assert resized.image.dtype == np.uint8
    assert not resized.is_original
    assert resized.boxes is None


@pytest.mark.parametrize("mode", MODES)
def test_an_image_of_that_size_keeps_its_own_bytes(mode):
    before = example(np.zeros((20, 30, 3), np.uint8))
    assert resize(before, Resize(height=20, width=30, mode=mode)) is before


def test_shrinking_averages_so_that_no_pixel_is_skipped():
    image = np.zeros((8, 8, 1), np.uint8)
    image[::2, ::2] = 200
    assert (resize(example(image), Resize(height=4, width=4)).image == 50).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "height, width", [(60, 90), (30, 45), (90, 60), (37, 41), (240, 100), (99, 333)]
)
def test_a_box_is_where_the_pixels_are(height, width, mode):
    resized = resize(
        marked(120, 180, (50, 75, 70, 105)), Resize(height=height, width=width, mode=mode)
    )
    assert corners(resized.boxes[0]) == pytest.approx(
        white_part(resized.image), abs=0.51
    )  # white ends inside a pixel


def test_letterbox_shows_the_whole_image_between_bars():
    white = example(np.full((10, 20, 3), 255, np.uint8))
    image = resize(
        white, Resize(height=40, width=40, mode="letterbox", pad_color=(10, 20, 30))
    ).image
    assert white_part(image) == (10, 0, 30, 40)
    assert (image[:10] == [10, 20, 30]).all()
    assert (image[30:] == [10, 20, 30]).all()


def test_bars_of_a_grey_image_have_the_luma_of_their_colour():
    black = example(np.zeros((10, 20, 1), np.uint8))
    assert (
        resize(black, Resize(height=40, width=40, mode="letterbox", pad_color=(255, 0, 0))).image[
            0, 0, 0
        ]
        == 76
    )


def test_crop_takes_the_middle_without_distortion():
    resized = resize(marked(100, 200, (40, 90, 60, 110)), Resize(height=50, width=50, mode="crop"))
    assert corners(resized.boxes[0]) == white_part(resized.image) == (20, 20, 30, 30)


@pytest.mark.parametrize("min_visible, wanted", [(0.5, [(40.0, 0.0, 60.0, 20.0)]), (0.51, [])])
def test_a_box_that_crop_has_cut_is_cut_too_and_goes_if_too_little_is_left(min_visible, wanted):
    """The crop is columns 50 to 150, the box columns 30 to 70."""
    resized = resize(
        marked(100, 200, (40, 30, 60, 70)),
        Resize(height=100, width=100, mode="crop", min_visible=min_visible),
    )
    assert [corners(box) for box in resized.boxes] == wanted


def test_what_a_box_says_beside_its_place_stays():
    before = example(np.zeros((10, 10, 3), np.uint8)).with_boxes(
        [Box(1, 1, 2, 2, "cell", is_difficult=True, is_crowd=True)]
    )
    assert resize(before, Resize(height=20, width=20)).boxes == (
        Box(2, 2, 4, 4, "cell", is_difficult=True, is_crowd=True),
    )
