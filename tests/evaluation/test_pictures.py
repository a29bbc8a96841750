"""Test images on the page."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from pipeline_ops.evaluation.pictures import to_data_uri


def encode(kind: str, side: int = 8, mode: str = "L") -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8)
    output = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(output, kind)
    return output.getvalue()


def decode(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1])))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_what_a_browser_shows_stays_as_it_is(kind):
    image = encode(kind)
    assert (
        to_data_uri(image) == f"data:image/{kind.lower()};base64,{base64.b64encode(image).decode()}"
    )


@pytest.mark.parametrize(
    "kind, mode", [("BMP", "L"), ("GIF", "L"), ("TIFF", "CMYK"), ("WEBP", "RGB")]
)
def test_any_other_format_becomes_a_png(kind, mode):
    uri = to_data_uri(encode(kind, mode=mode))
    assert uri.startswith("data:image/png;base64,") and decode(uri).size == (8, 8)


def test_a_large_picture_is_shown_small():
    assert max(decode(to_data_uri(encode("PNG", side=600, mode="RGB"))).size) == 256


@pytest.mark.parametrize(
    "image", [b"", b"<svg onload='alert(1)'/>", b"\x89PNG\r\n\x1a\n" + b"0" * 60_000, b"BM garbage"]
)
def test_what_is_no_image_is_not_shown_as_one(image):
    assert to_data_uri(image) is None
