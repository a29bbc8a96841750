"""Decodes the image file and keeps out what is not a whole image.

JPEG and PNG files of 8 bits keep their own bytes, also when grey becomes colour or colour grey: the reader of the shard
decodes to the wanted channels itself. Other formats, 16 bits, CMYK, and images that EXIF says are turned are encoded
anew. Of an animation the first frame counts; an alpha channel is dropped. A JPEG whose middle was overwritten decodes
without complaint in every library, so that is not noticed here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from beam_jobs.stages.stage import Example, Reject, parameters

if TYPE_CHECKING:
    import numpy as np


@parameters
class Decode:
    channels: Literal[1, 3] = 3
    """1 for grey, 3 for RGB, whatever the files have."""
    max_megapixels: float = Field(50.0, gt=0, le=1000)
    """A larger image is kept out before it is decoded: a file of 400 kB may hold a gigabyte of pixels."""


def decode(example: Example, parameters: Decode) -> Example:
    """Raises Reject: empty, not_image, too_large, truncated, corrupt."""
    data = example.encoded
    if not data:
        raise Reject("empty", "the file has no bytes")
    header = _read_header(data)
    _check_size(header, parameters.max_megapixels)
    image = _decode_jpeg(data, parameters.channels) if header.is_plain_jpeg else _decode_other(data, parameters.channels)
    return dataclasses.replace(example, image=image, is_original=header.is_kept)


class _Header(NamedTuple):
    """`is_kept`: the shard's reader gets the same pixels from the file as it is."""

    height: int
    width: int
    is_kept: bool
    is_plain_jpeg: bool = False


def _read_header(data: bytes) -> _Header:
    if data.startswith(b"\xff\xd8\xff"):
        return _read_jpeg_header(data)
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _read_png_header(data)
    if data.startswith((b"GIF8", b"BM", b"II*\0", b"MM\0*")) or (data.startswith(b"RIFF") and data[8:12] == b"WEBP"):
        with _open_with_pillow(data) as image:
            return _Header(image.height, image.width, is_kept=False)
    raise Reject("not_image", f"begins with {data[:8]!r}, which is no JPEG, PNG, WebP, GIF, BMP or TIFF")


def _read_jpeg_header(data: bytes) -> _Header:
    import simplejpeg

    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError as error:
        raise _broken_jpeg(data, error) from None
    is_upright = _orientation(data) == 1
    return _Header(height, width, is_kept=is_upright and colors in ("YCbCr", "Gray", "RGB"), is_plain_jpeg=is_upright)


def _orientation(data: bytes) -> int:
    """EXIF's orientation of a JPEG, 1 to 8; 1 is upright. Pillow is asked only where there is EXIF at all."""
    if data.find(b"Exif\0\0", 0, data.find(b"\xff\xda")) < 0:  # only up to the pixels: the search would take longer than the header
        return 1
    with _open_with_pillow(data) as image:
        return image.getexif().get(0x0112, 1)


def _read_png_header(data: bytes) -> _Header:
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise Reject("truncated", f"a PNG of {len(data)} bytes ends inside its header")
    width, height, bits = struct.unpack(">IIB", data[16:25])
    return _Header(height, width, is_kept=bits <= 8 and b"eXIf" not in data)  # a turned PNG is rare: whatever has EXIF is encoded anew


@contextlib.contextmanager
def _open_with_pillow(data: bytes) -> Iterator:
    """For headers only; no pixel is decoded."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # its limit is a warning first and too high then; ours is `max_megapixels`
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "WEBP", "GIF", "BMP", "TIFF")) as image:
            yield image
    except (OSError, ValueError, SyntaxError, struct.error) as error:
        raise Reject("corrupt", f"unreadable header: {error}") from None


def _check_size(header: _Header, max_megapixels: float) -> None:
    if header.height * header.width > max_megapixels * 1e6:
        raise Reject("too_large", f"{header.width}x{header.height} pixels, at most {max_megapixels:g} megapixels")
    if not header.height * header.width:
        raise Reject("corrupt", f"{header.width}x{header.height} pixels")


def _decode_jpeg(data: bytes, channels: int) -> np.ndarray:
    import simplejpeg

    try:
        return simplejpeg.decode_jpeg(data, "GRAY" if channels == 1 else "RGB")
    except ValueError as error:
        raise _broken_jpeg(data, error) from None


def _broken_jpeg(data: bytes, error: ValueError) -> Reject:
    has_end = b"\xff\xd9" in data and "Premature end" not in str(error)  # a thumbnail inside has an end of its own
    return Reject("corrupt" if has_end else "truncated", str(error))


def _decode_other(data: bytes, channels: int) -> np.ndarray:
    """With OpenCV, which turns the image as EXIF says, and makes 8 bits of 16."""
    import cv2
    import numpy as np

    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR_RGB)
    except cv2.error as error:
        if error.code == cv2.Error.StsNoMem:  # the machine's fault: the same file is fine on the next try
            raise MemoryError(error.err) from None
        raise Reject("corrupt", error.err) from None
    if image is None:
        raise _broken_other(data)
    return image.reshape(*image.shape[:2], channels)


def _broken_other(data: bytes) -> Reject:
    if data.startswith(b"\x89PNG") and b"IEND\xaeB`\x82" not in data:
        return Reject("truncated", f"a PNG without its end after {len(data)} bytes")
    return Reject("corrupt", f"{len(data)} bytes that can't be decoded to the end")
