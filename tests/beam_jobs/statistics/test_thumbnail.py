"""Pictures of bad records."""

from __future__ import annotations

import base64

import cv2
import numpy as np
import pytest

from beam_jobs.statistics.thumbnail import make_thumbnail


def decoded(uri: str) -> np.ndarray:
    return cv2.imdecode(
        np.frombuffer(base64.b64decode(uri.removeprefix("data:image/png;base64,")), np.uint8),
        cv2.IMREAD_COLOR,
    )


@pytest.mark.parametrize("kind", [".jpg", ".png", ".bmp", ".webp", ".gif"])
def test_a_whole_image_becomes_a_small_png(encode, kind):
    assert decoded(make_thumbnail(encode(300, 400, 3, kind=kind))).shape == (84, 112, 3)


def test_of_a_truncated_image_the_part_that_is_there_is_shown(encode):
    whole = encode(64, 64, 3, kind=".jpg")
    picture = decoded(make_thumbnail(whole[: len(whole) * 3 // 4]))
    assert picture[:16].std() > 10
    assert picture[-4:].std() < 1


@pytest.mark.parametrize(
    "content",
    [b"", b"text", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, b"RIFF\0\0\0\0WEBPVP8 "],
)
def test_what_is_no_image_has_no_picture(content):
    assert make_thumbnail(content) is None


def test_a_bomb_is_not_decoded(encode):
    header = bytearray(encode(8, 8))
    header[16:24] = (60000).to_bytes(4, "big") * 2
    assert make_thumbnail(bytes(header)) is None
