"""The kinds of an image file, read from its headers."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from beam_jobs.io.kinds import list_kinds

PICTURE = Image.fromarray(
    np.random.default_rng(0).integers(0, 256, (24, 36, 3), dtype=np.uint8), "RGB"
)
SEEN_THROUGH = PICTURE.copy()
SEEN_THROUGH.putalpha(100)
SHAPE = (24, 36, 3)


def save(kind: str, picture: Image.Image = PICTURE, turned: int = 0, **options) -> bytes:
    if turned:
        options["exif"] = Image.Exif()
        options["exif"][0x0112] = turned
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def make_deep_png() -> bytes:
    """A PNG of 16 bits a channel, with colours, which Pillow can read and not write."""

    def chunk(name: bytes, data: bytes) -> bytes:
        crc = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", crc)

    rows = b"".join(b"\0" + bytes(36 * 6) for _ in range(24))
    head = struct.pack(">IIBBBBB", 36, 24, 16, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks)


@pytest.mark.parametrize(
    "data, kinds",
    [
        (save("JPEG"), "JPEG"),
        (save("JPEG", progressive=True), "progressive JPEG"),
        *((save("JPEG", turned=turned), f"JPEG, EXIF {turned}") for turned in range(2, 9)),
        (save("JPEG", turned=1), "JPEG"),
        (save("JPEG", turned=9), "JPEG"),
        (save("JPEG", PICTURE.convert("CMYK")), "JPEG, CMYK"),
        (save("JPEG", PICTURE.convert("L")), "JPEG, grey"),
        (save("PNG"), "PNG"),
        (save("PNG", SEEN_THROUGH), "PNG, alpha"),
        (save("PNG", PICTURE.convert("LA")), "PNG, alpha, grey"),
        (save("PNG", PICTURE.convert("P")), "PNG, palette"),
        (save("PNG", PICTURE.convert("P"), transparency=3), "PNG, alpha, palette"),
        (save("PNG", PICTURE.convert("1")), "PNG, grey, 1 bit"),
        (save("PNG", PICTURE.convert("I;16")), "PNG, grey, 16 bit"),
        (make_deep_png(), "PNG, 16 bit"),
        (save("PNG", turned=6), "PNG, EXIF 6"),
        (save("WEBP"), "WebP"),
        (save("WEBP", SEEN_THROUGH), "WebP, alpha"),
        (save("WEBP", turned=3), "WebP, EXIF 3"),
        (save("GIF"), "GIF, palette"),
        (save("BMP"), "BMP"),
        (save("TIFF"), "TIFF"),
        (save("TIFF", turned=8), "TIFF, EXIF 8"),
        (save("TIFF", PICTURE.convert("I;16")), "TIFF, grey, 16 bit"),
        (save("MPO", save_all=True, append_images=[PICTURE]), "JPEG"),
        (b"\xff\xd8\xff and no more", "unusual"),
    ],
)
def test_the_kinds_of_a_file(data, kinds):
    assert list_kinds(data, SHAPE, SHAPE) == kinds.split(", ")


@pytest.mark.parametrize(
    "decoded, result, kinds",
    [
        ((24, 36, 1), (24, 36, 1), ["colour"]),
        ((24, 36, 3), (24, 40, 3), ["small"]),
        ((24, 36, 3), (12, 12, 3), []),
        ((10, 40, 3), (8, 8, 3), []),
        ((10, 41, 3), (8, 8, 3), ["beyond 1:4"]),
        ((5000, 4001, 3), (8, 8, 3), ["above 20 megapixels"]),
    ],
)
def test_the_kinds_by_size_and_channels(decoded, result, kinds):
    assert list_kinds(save("PNG"), decoded, result) == ["PNG", *kinds]
