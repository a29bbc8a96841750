"""The stage equalize."""

from __future__ import annotations

import numpy as np
import pytest

from beam_jobs.stages.equalize import Equalize, equalize
from beam_jobs.stages.stage import Box, Example

RAMP = np.linspace(100, 120, 64 * 64).reshape(64, 64, 1).astype(np.uint8)  # hardly any contrast


@pytest.mark.parametrize("channels", [1, 3])
def test_a_flat_image_gets_more_contrast_and_keeps_its_shape(channels):
    flat = Example("lung/1.png", "lung", b"the file", RAMP.repeat(channels, axis=2))
    after = equalize(flat, Equalize(limit=8, parts=1))
    assert after.image.std() > 1.5 * flat.image.std()
    assert (after.image.shape, after.image.dtype, after.is_original) == (
        (64, 64, channels),
        np.uint8,
        False,
    )


def test_a_higher_limit_gives_more_contrast():
    flat = Example("lung/1.png", "lung", b"the file", RAMP)
    low, high = (equalize(flat, Equalize(limit=limit, parts=1)).image.std() for limit in (1.0, 8.0))
    assert low < high


def test_colours_keep_their_hue():
    red = np.concatenate([RAMP, RAMP // 4, RAMP // 4], axis=2)
    after = equalize(Example("a", "a", b"", red), Equalize()).image.astype(float)
    assert after[:, :, 0].mean() > 2 * after[:, :, 1:].mean()


def test_boxes_stay_where_they_are():
    boxes = (Box(1, 2, 3, 4, "nodule"),)
    assert equalize(Example("a", "", b"", RAMP, boxes=boxes), Equalize()).boxes == boxes
