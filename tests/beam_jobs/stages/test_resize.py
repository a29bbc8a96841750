"""The stage resize."""

from __future__ import annotations

import numpy as np
import pytest

from beam_jobs.stages.resize import Resize, resize
from beam_jobs.stages.stage import Example


def example(image: np.ndarray) -> Example:
    return Example("cat/1.png", "cat", b"the file", image)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("height, width", [(4, 6), (40, 60), (40, 6)])
def test_every_image_gets_the_size_and_keeps_its_channels(height, width, channels):
    image = np.random.default_rng(0).integers(0, 256, (20, 30, channels), dtype=np.uint8)
    resized = resize(example(image), Resize(height=height, width=width))
    assert resized.image.shape == (height, width, channels)
    assert resized.image.dtype == np.uint8
    assert not resized.is_original


def test_an_image_of_that_size_keeps_its_own_bytes():
    before = example(np.zeros((20, 30, 3), np.uint8))
    assert resize(before, Resize(height=20, width=30)) is before


def test_shrinking_averages_so_that_no_pixel_is_skipped():
    image = np.zeros((8, 8, 1), np.uint8)
    image[::2, ::2] = 200
    assert (resize(example(image), Resize(height=4, width=4)).image == 50).all()
