"""The stage encode."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import simplejpeg
from pydantic import ValidationError

from beam_jobs.stages.encode import Encode, encode
from beam_jobs.stages.stage import Example

PIXELS = cv2.GaussianBlur(
    np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8), (7, 7), 0
)
CHANGED = Example("cat/1.png", "cat", b"the file", PIXELS, is_original=False)


def test_an_image_that_no_stage_has_changed_keeps_its_own_bytes():
    before = Example("cat/1.png", "cat", b"the file", PIXELS)
    assert encode(before, Encode(format="jpeg")) is before


def test_jpeg_gives_a_jpeg_of_the_pixels():
    after = encode(CHANGED, Encode(format="jpeg", quality=95))
    assert after.is_original
    assert np.abs(simplejpeg.decode_jpeg(after.encoded).astype(int) - PIXELS).mean() < 4


def test_a_grey_image_stays_grey():
    after = encode(CHANGED.with_image(PIXELS[:, :, :1]), Encode(format="jpeg"))
    assert simplejpeg.decode_jpeg_header(after.encoded)[2] == "Gray"


def test_a_part_of_an_image_is_encoded_as_it_is():
    """A stage may have cut or turned it by a view."""
    part = CHANGED.with_image(PIXELS[5:25, 30:10:-1])
    copy = CHANGED.with_image(PIXELS[5:25, 30:10:-1].copy())
    assert (
        encode(part, Encode(format="jpeg")).encoded == encode(copy, Encode(format="jpeg")).encoded
    )


def test_a_lower_quality_is_smaller_and_the_same_quality_the_same_bytes():
    fine, coarse, again = (
        encode(CHANGED, Encode(format="jpeg", quality=quality)).encoded for quality in (95, 50, 95)
    )
    assert len(coarse) < len(fine)
    assert fine == again


def test_sharp_colors_keep_an_edge_between_colours():
    stripes = np.zeros((16, 16, 3), np.uint8)
    stripes[:, ::2, 0] = stripes[:, 1::2, 2] = 255
    sharp, blurred = (
        simplejpeg.decode_jpeg(
            encode(
                CHANGED.with_image(stripes), Encode(format="jpeg", sharp_colors=is_sharp)
            ).encoded
        )
        for is_sharp in (True, False)
    )
    assert np.abs(sharp.astype(int) - stripes).mean() < 10
    assert np.abs(blurred.astype(int) - stripes).mean() > 50


def test_png_leaves_the_encoding_to_the_writer_of_the_shard():
    assert encode(CHANGED, Encode(format="png")) is CHANGED


@pytest.mark.parametrize("more", [{"quality": 80}, {"sharp_colors": True}])
def test_png_has_no_quality(more):
    with pytest.raises(ValidationError, match="are for the format jpeg"):
        Encode(format="png", **more)
