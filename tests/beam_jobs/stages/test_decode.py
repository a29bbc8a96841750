"""The stage decode: what it takes, what it keeps out, and which files keep their own bytes."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from beam_jobs.stages.decode import Decode, count_bits, decode
from beam_jobs.stages.stage import Example, Reject

PIXELS = cv2.GaussianBlur(
    np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8), (7, 7), 0
)
PICTURE = Image.fromarray(PIXELS)


def save(kind: str, picture: Image.Image = PICTURE, **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def turned(kind: str, orientation: int = 6) -> bytes:
    exif = PICTURE.getexif()
    exif[0x0112] = orientation
    return save(kind, exif=exif)


def sixteen_bits() -> bytes:
    return cv2.imencode(".png", cv2.cvtColor(PIXELS, cv2.COLOR_RGB2BGR).astype(np.uint16) * 257)[
        1
    ].tobytes()


def run(data: bytes, channels: int = 3, **more) -> Example:
    return decode(Example("cat/1", "cat", data), Decode(channels=channels, **more))


def reason(data: bytes, **more) -> str:
    with pytest.raises(Reject) as caught:
        run(data, **more)
    assert caught.value.detail
    return caught.value.reason


KEPT = {
    "png": save("PNG"),
    "grey png": save("PNG", PICTURE.convert("L")),
    "palette png": save("PNG", PICTURE.convert("P")),
    "1-bit png": save("PNG", PICTURE.convert("1")),
    "rgba png": save("PNG", PICTURE.convert("RGBA")),
    "grey and alpha png": save("PNG", PICTURE.convert("LA")),
    "jpeg": save("JPEG", quality=95),
    "grey jpeg": save("JPEG", PICTURE.convert("L"), quality=95),
    "progressive jpeg": save("JPEG", quality=95, progressive=True),
    "upright jpeg with exif": turned("JPEG", 1),
}
REENCODED = {
    "16-bit png": sixteen_bits(),
    "turned png": turned("PNG"),
    "turned jpeg": turned("JPEG"),
    "cmyk jpeg": save("JPEG", PICTURE.convert("CMYK"), quality=95),
    "webp": save("WEBP", lossless=True),
    "gif": save("GIF"),
    "bmp": save("BMP"),
    "tiff": save("TIFF"),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", KEPT)
def test_a_plain_file_keeps_its_own_bytes(name, channels):
    example = run(KEPT[name], channels)
    assert example.is_original
    assert example.encoded == KEPT[name]
    assert example.image.shape == (30, 40, channels)
    assert example.image.dtype == np.uint8


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", REENCODED)
def test_what_the_reader_of_a_shard_would_see_otherwise_is_encoded_anew(name, channels):
    example = run(REENCODED[name], channels)
    assert not example.is_original
    assert example.image.shape == (
        (40, 30, channels) if name.startswith("turned") else (30, 40, channels)
    )


@pytest.mark.parametrize(
    "name", ["png", "jpeg", "progressive jpeg", "16-bit png", "webp", "bmp", "tiff", "cmyk jpeg"]
)
def test_the_colors_are_rgb_and_right(name):
    data = (KEPT | REENCODED)[name]
    assert np.abs(run(data).image.astype(int) - PIXELS).mean() < 8
    swapped = np.abs(run(data).image.astype(int) - PIXELS[:, :, ::-1]).mean()
    assert swapped > 12


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_turned_image_is_turned_upright(kind):
    upright = np.rot90(PIXELS, -1)
    assert np.abs(run(turned(kind)).image.astype(int) - upright).mean() < 8


def test_an_empty_file_is_kept_out():
    assert reason(b"") == "empty"


@pytest.mark.parametrize(
    "data", [b"x", b"hello, I am a text", b"<html></html>", b"\xff\xd8", b"\x00" * 100]
)
def test_what_is_no_image_is_kept_out(data):
    assert reason(data) == "not_image"


@pytest.mark.parametrize(
    "data",
    [KEPT["png"], KEPT["jpeg"], KEPT["progressive jpeg"]],
    ids=["png", "jpeg", "progressive"],
)
@pytest.mark.parametrize("share", [0.3, 0.5, 0.99])
def test_a_truncated_file_is_kept_out(data, share):
    assert reason(data[: int(len(data) * share)]) == "truncated"


@pytest.mark.parametrize("name", [*KEPT, *REENCODED])
@pytest.mark.parametrize("share", [0.05, 0.4, 0.97])
def test_no_part_of_a_file_passes_for_a_whole_one(name, share):
    data = (KEPT | REENCODED)[name]
    assert reason(data[: int(len(data) * share)]) in ("truncated", "corrupt", "not_image")


def test_a_png_with_a_wrong_byte_inside_is_kept_out():
    data = bytearray(KEPT["png"])
    data[len(data) // 2] ^= 0xFF
    assert reason(bytes(data)) == "corrupt"


def test_a_large_image_is_kept_out_before_it_is_decoded():
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + chunk
        + struct.pack(">I", zlib.crc32(chunk))
        + b"IDAT"
    )
    assert reason(bomb) == "too_large"


@pytest.mark.parametrize("name", [*KEPT, *REENCODED])
def test_the_size_limit_holds_for_every_format(name):
    assert reason((KEPT | REENCODED)[name], max_megapixels=0.001) == "too_large"


def test_trailing_bytes_do_no_harm():
    assert run(KEPT["jpeg"] + b"some camera's notes").image.shape == (30, 40, 3)
    assert run(KEPT["png"] + b"some camera's notes").image.shape == (30, 40, 3)


def test_tensorflow_sees_in_a_kept_file_what_the_stages_saw(tmp_path: Path):
    """In a process of its own, because TensorFlow takes seconds to import and stays."""
    wanted = {}
    for name, data in KEPT.items():
        for channels in (1, 3):
            file = f"{name}-{channels}"
            (tmp_path / file).write_bytes(data)
            wanted[file] = run(data, channels).image
    np.savez(tmp_path / "wanted.npz", **wanted)
    code = """
import pathlib, sys, numpy as np, tensorflow as tf
folder = pathlib.Path(sys.argv[1])
for name, image in np.load(folder / "wanted.npz").items():
    seen = tf.io.decode_image((folder / name).read_bytes(), channels=image.shape[2], expand_animations=False).numpy()
    assert seen.shape == image.shape, (name, seen.shape)
    difference = np.abs(seen.astype(int) - image).mean()
    assert difference < 2, (name, difference)
"""  # noqa: E501
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_values_of_twelve_bits_fill_the_range():
    values = np.array([[0, 2048, 4095], [1, 16, 5000]], np.uint16)
    png = cv2.imencode(".png", values)[1].tobytes()
    assert count_bits(png) == 13
    assert count_bits(save("PNG")) == count_bits(save("JPEG")) == 0
    expected = [[0, 128, 255], [0, 1, 255]]
    assert run(png, channels=1, bits=12).image[..., 0].tolist() == expected
    assert run(png, channels=3, bits=12).image[..., 2].tolist() == expected
    assert run(png, channels=1).image[..., 0].tolist() == (values >> 8).tolist()
