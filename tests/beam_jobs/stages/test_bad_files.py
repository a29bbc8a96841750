"""Every kind of bad or odd image file, and what decode makes of it;
then generated ones.

The table is the documentation: a file is kept as it is, encoded again, or rejected for a reason.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from beam_jobs.stages.decode import Decode, decode
from beam_jobs.stages.stage import Example, Reject

cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # as in the job

PIXELS = cv2.GaussianBlur(
    np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8), (7, 7), 0
)
PICTURE = Image.fromarray(PIXELS)
SEEN_THROUGH = PICTURE.convert("RGBA")
SEEN_THROUGH.putalpha(100)
KEPT, AGAIN = "kept", "again"


def save(kind: str, picture: Image.Image = PICTURE, **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_header(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + png_chunk(
        b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    )


def png_bomb() -> bytes:
    """12,000 x 12,000 pixels, whole and valid, in 20 kB."""
    packer = zlib.compressobj(9)
    rows = (
        b"".join(packer.compress(bytes(1 + 12_000 // 8) * 1000) for _ in range(12)) + packer.flush()
    )
    header = b"\x89PNG\r\n\x1a\n" + png_chunk(
        b"IHDR", struct.pack(">IIBBBBB", 12_000, 12_000, 1, 0, 0, 0, 0)
    )
    return header + png_chunk(b"IDAT", rows) + png_chunk(b"IEND", b"")


def jpeg_header(width: int, height: int) -> bytes:
    """A JPEG that says it is so large."""
    data = bytearray(JPEG)
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def jpeg_of_scans(count: int) -> bytes:
    """A progressive JPEG whose last scan stands there again and again:
    each is a pass over all pixels."""
    data = save("JPEG", quality=95, progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + (data[last:-2] * count) + data[-2:]


def turned(orientation: int, kind: str = "JPEG") -> bytes:
    exif = PICTURE.getexif()
    exif[0x0112] = orientation
    return save(kind, exif=exif, **({"quality": 95} if kind == "JPEG" else {}))


def deep(kind: str) -> bytes:
    return cv2.imencode(kind, PIXELS[:, :, ::-1].astype(np.uint16) * 257)[1].tobytes()


JPEG = save("JPEG", quality=95)
PNG = save("PNG")
EXAMPLES = {
    # name: (file, outcome)
    "zero byte": (b"", "empty"),
    "one byte": (b"x", "not_image"),
    "text": (b"I am not an image, I am a shopping list.", "not_image"),
    "html": (b"<!DOCTYPE html><html><title>404 Not Found</title></html>", "not_image"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not_image"),
    "zeros": (bytes(4096), "not_image"),
    "jpeg cut inside its header": (JPEG[:20], "truncated"),
    "jpeg cut at 50 %": (JPEG[: len(JPEG) // 2], "truncated"),
    "jpeg cut at 99 %": (JPEG[: len(JPEG) * 99 // 100], "truncated"),
    "jpeg without its end": (JPEG[:-2], "truncated"),
    "png cut at 50 %": (PNG[: len(PNG) // 2], "truncated"),
    "png cut at 99 %": (PNG[: len(PNG) * 99 // 100], "truncated"),
    "png without its end": (PNG[:-12], "truncated"),
    "png with alpha, cut": (save("PNG", SEEN_THROUGH)[:-40], "truncated"),
    "jpeg with garbage behind": (JPEG + b"some camera's notes", KEPT),
    "png with garbage behind": (PNG + b"some camera's notes", KEPT),
    "jpeg whose middle is overwritten": (
        JPEG[: len(JPEG) // 2] + bytes(20) + JPEG[len(JPEG) // 2 + 20 :],
        KEPT,
    ),  # no library notices
    "png whose middle is overwritten": (
        PNG[: len(PNG) // 2] + bytes(20) + PNG[len(PNG) // 2 + 20 :],
        "corrupt",
    ),
    "png named .jpg": (PNG, KEPT),  # the name does not count, the first bytes do
    "gif": (save("GIF"), AGAIN),
    "gif of two frames": (
        save("GIF", save_all=True, append_images=[Image.new("RGB", (64, 48))]),
        AGAIN,
    ),
    "webp": (save("WEBP", lossless=True), AGAIN),
    "webp of two frames": (
        save("WEBP", lossless=True, save_all=True, append_images=[Image.new("RGB", (64, 48))]),
        AGAIN,
    ),
    "bmp": (save("BMP"), AGAIN),
    "tiff": (save("TIFF"), AGAIN),
    "tiff, compressed": (save("TIFF", compression="tiff_lzw"), AGAIN),
    "cmyk jpeg": (save("JPEG", PICTURE.convert("CMYK"), quality=95), AGAIN),
    "grey jpeg": (save("JPEG", PICTURE.convert("L"), quality=95), KEPT),
    "progressive jpeg": (save("JPEG", quality=95, progressive=True), KEPT),
    "jpeg with arithmetic coding, as far as the header": (
        JPEG.replace(b"\xff\xc0", b"\xff\xc9", 1),
        "corrupt",
    ),
    "palette png": (save("PNG", PICTURE.convert("P")), KEPT),
    "png of two frames": (
        save("PNG", save_all=True, append_images=[Image.new("RGB", (64, 48))]),
        AGAIN,
    ),
    "png with a chunk of 2 GB, as it says": (
        PNG[:33] + b"\x7f\xff\xff\xff" + PNG[37:],
        "truncated",
    ),
    "1-bit png": (save("PNG", PICTURE.convert("1")), KEPT),
    "grey png": (save("PNG", PICTURE.convert("L")), KEPT),
    "1x1 png": (save("PNG", Image.new("RGB", (1, 1), (200, 100, 50))), KEPT),
    "1x1 jpeg": (save("JPEG", Image.new("RGB", (1, 1))), KEPT),
    "16-bit png": (deep(".png"), AGAIN),
    "16-bit tiff": (deep(".tiff"), AGAIN),
    "opaque rgba png": (save("PNG", PICTURE.convert("RGBA")), KEPT),
    "rgba png": (save("PNG", SEEN_THROUGH), AGAIN),
    "grey and alpha png": (save("PNG", SEEN_THROUGH.convert("LA")), AGAIN),
    "palette png with a transparent colour": (
        save("PNG", Image.new("P", (64, 48)), transparency=0),
        AGAIN,
    ),
    "png with a transparent grey": (
        save("PNG", Image.new("L", (64, 48), 60), transparency=60),
        AGAIN,
    ),
    "rgba webp": (save("WEBP", SEEN_THROUGH, lossless=True), AGAIN),
    "gif with a transparent colour": (
        save("GIF", Image.new("P", (64, 48)), transparency=0),
        AGAIN,
    ),
    **{
        f"jpeg turned by exif {orientation}": (
            turned(orientation),
            KEPT if orientation == 1 else AGAIN,
        )
        for orientation in range(1, 9)
    },
    "jpeg with an impossible orientation": (turned(9), KEPT),
    "turned png": (turned(6, "PNG"), AGAIN),
    "turned webp": (turned(6, "WEBP"), AGAIN),
    "png header of 50000x50000": (png_header(50_000, 50_000) + b"IDAT", "too_large"),
    "png header of 20000x9000": (png_header(20_000, 9_000), "too_large"),
    "png header of 0x0": (png_header(0, 0), "corrupt"),
    "whole png of 12000x12000": (png_bomb(), "too_large"),
    "jpeg of 400 scans": (jpeg_of_scans(400), "too_costly"),
    "jpeg header of 65000x65000": (jpeg_header(65_000, 65_000), "too_large"),
    "bmp header of 50000x50000": (
        struct.pack(
            "<2sIIIIiiHHIIiiII", b"BM", 54, 0, 54, 40, 50_000, 50_000, 1, 24, 0, 0, 0, 0, 0, 0
        ),
        "too_large",
    ),
    "gif header of 65535x65535": (
        b"GIF89a" + struct.pack("<HHBBB", 65_535, 65_535, 0, 0, 0) + b";",
        "corrupt",
    ),
}


class Memory:
    """How much this process holds at most while the block runs, beyond what it held before.
    Linux only."""

    def __enter__(self) -> Memory:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        self._before = self._peak_megabytes()
        return self

    def __exit__(self, *_) -> None:
        self.megabytes = self._peak_megabytes() - self._before

    def _peak_megabytes(self) -> float:
        return (
            int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1))
            / 1024
        )


def outcome_of(data: bytes, channels: int = 3) -> tuple[str, Example | None]:
    try:
        example = decode(Example("cat/1", "cat", data), Decode(channels=channels))
    except Reject as reject:
        assert reject.detail
        return reject.reason, None
    assert example.image.dtype == np.uint8
    assert example.image.shape[2] == channels
    return KEPT if example.is_original else AGAIN, example


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_kind_of_file_has_its_outcome(name, channels):
    data, wanted = EXAMPLES[name]
    with Memory() as memory:
        assert outcome_of(data, channels)[0] == wanted
    assert memory.megabytes < 100


RIGHT = [
    "gif",
    "webp",
    "bmp",
    "tiff",
    "16-bit png",
    "16-bit tiff",
    "cmyk jpeg",
    "progressive jpeg",
    "opaque rgba png",
    "jpeg turned by exif 1",
    "gif of two frames",
    "webp of two frames",
]


@pytest.mark.parametrize("name", RIGHT)
def test_what_comes_out_shows_what_went_in(name):
    image = outcome_of(EXAMPLES[name][0])[1].image
    assert np.abs(image.astype(int) - PIXELS).mean() < (12 if name.startswith("gif") else 8)


TURNS = {
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.swapaxes(0, 1),
    6: lambda p: np.rot90(p, -1),
    7: lambda p: p[::-1, ::-1].swapaxes(0, 1),
    8: lambda p: np.rot90(p),
}


@pytest.mark.parametrize("orientation", TURNS)
def test_every_orientation_comes_out_upright(orientation):
    image = outcome_of(turned(orientation))[1].image
    upright = TURNS[orientation](PIXELS)
    assert image.shape == upright.shape
    assert np.abs(image.astype(int) - upright).mean() < 8


@pytest.mark.parametrize("name", ["rgba png", "rgba webp"])
@pytest.mark.parametrize("background", [(0, 0, 0), (255, 255, 255), (200, 100, 0)])
def test_what_can_be_seen_through_is_laid_on_the_background(name, background):
    image = decode(Example("cat/1", "cat", EXAMPLES[name][0]), Decode(background=background)).image
    wanted = (PIXELS * (100 / 255) + np.array(background) * (155 / 255)).round()
    assert np.abs(image - wanted).max() <= 1


def test_a_turned_image_that_can_be_seen_through_is_turned_too():
    exif = SEEN_THROUGH.getexif()
    exif[0x0112] = 6
    kind, example = outcome_of(save("PNG", SEEN_THROUGH, exif=exif))
    assert (kind, example.image.shape) == (AGAIN, (64, 48, 3))


# Generated files ---------------------------------------------------------------------------------

REAL = [data for data, outcome in EXAMPLES.values() if outcome in (KEPT, AGAIN)]


@st.composite
def damaged(draw) -> bytes:
    """A real image file of any kind, with some bytes changed, cut out, or put in."""
    data = bytearray(draw(st.sampled_from(REAL)))
    for _ in range(draw(st.integers(1, 6))):
        place = draw(
            st.one_of(st.integers(0, len(data)), st.integers(0, min(60, len(data))))
        )  # headers are where it hurts
        match draw(st.sampled_from(["set", "cut", "insert", "repeat"])):
            case "set":
                new = draw(st.binary(min_size=1, max_size=8))
                data[place : place + len(new)] = new
            case "cut":
                del data[place : place + draw(st.integers(1, 50))]
            case "insert":
                data[place:place] = draw(st.binary(max_size=20))
            case "repeat":
                data[place:place] = data[place : place + draw(st.integers(1, 200))]
    return bytes(data)


MAGIC = [
    b"",
    b"\xff\xd8\xff",
    b"\xff\xd8\xff\xe1\x00\x20Exif\0\0",
    b"\x89PNG\r\n\x1a\n",
    b"GIF89a",
    b"BM",
    b"II*\0",
    b"MM\0*",
    b"RIFF\0\0\0\0WEBPVP8 ",
]
FUZZ = settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@FUZZ
@given(st.sampled_from(MAGIC), st.binary(max_size=300), st.sampled_from([1, 3]))
def test_any_bytes_are_an_image_or_a_reject(magic, rest, channels):
    outcome_of(magic + rest, channels)


@FUZZ
@given(damaged(), st.sampled_from([1, 3]))
def test_any_damaged_image_is_an_image_or_a_reject_and_takes_little_memory(data, channels):
    with Memory() as memory:
        outcome_of(data, channels)
    assert memory.megabytes < 600  # 50 megapixels, four times over


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"GIF89a", "GIF"),
        (b"RIFF\x04\0\0\0WEBP", "WebP"),
        (b"BM", "BMP"),
        (b"II*\0", "TIFF"),
        (b"MM\0*", "TIFF"),
        (png_header(8, 8) + png_chunk(b"tRNS", b"") + png_chunk(b"IEND", b""), "PNG"),
    ],
)
def test_a_file_that_pillow_does_not_recognise_has_the_same_detail_on_each_try(data, kind):
    details = set()
    for _ in range(2):
        with pytest.raises(Reject) as caught:
            decode(Example("image", "", data), Decode())
        details.add((caught.value.reason, caught.value.detail))
    assert details == {("corrupt", f"not a readable {kind}")}
