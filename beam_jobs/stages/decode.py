"""Decodes the image file and keeps out what is not a whole image.

JPEG and PNG files of 8 bits keep their own bytes, also when grey becomes colour or colour grey: the reader of the shard
decodes to the wanted channels itself. Other formats, 16 bits, CMYK, and images that EXIF says are turned are encoded
anew, and so are images that can be seen through: they are laid on a background. Of an animation the first frame counts.
A JPEG whose middle was overwritten decodes without complaint in every library, so that is not noticed here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from beam_jobs.stages.given_boxes import settle_boxes
from beam_jobs.stages.stage import Box, Color, Example, Reject, parameters

if TYPE_CHECKING:
    import numpy as np


@parameters
class Decode:
    channels: Literal[1, 3] = 3
    """1 for grey, 3 for RGB, whatever the files have."""
    max_megapixels: float = Field(50.0, gt=0, le=1000)
    """A larger image is kept out before it is decoded: a file of 400 kB may hold a gigabyte of pixels."""
    background: Color = (255, 255, 255)
    """What is seen through the transparent parts of an image, [red, green, blue]."""


def decode(example: Example, parameters: Decode) -> Example:
    """Boxes come out in pixels of the upright image, wherever and however they were given.

    Raises Reject: empty, not_image, too_large, truncated, corrupt; size_mismatch, box_outside.
    """
    data = example.encoded
    if not data:
        raise Reject("empty", "the file has no bytes")
    header = _read_header(data)
    _check_size(header, parameters.max_megapixels)
    if not header.is_whole:
        raise Reject("truncated", f"a PNG of which a part is missing; it has {len(data)} bytes")
    if header.is_plain_jpeg:
        image, is_kept = _decode_jpeg(data, parameters.channels), header.is_kept
    elif header.has_alpha:
        image, is_opaque = _decode_on(parameters.background, data, parameters.channels)
        is_kept = header.is_kept and is_opaque
    else:
        image, is_kept = _decode_other(data, parameters.channels), header.is_kept
    if image.shape[:2] not in ((header.height, header.width), (header.width, header.height)):
        raise Reject("corrupt", f"the header says {header.width}x{header.height} pixels, the data {image.shape[1]}x{image.shape[0]}")
    return dataclasses.replace(example, image=image, is_original=is_kept, boxes=_settled_boxes(example, header), frame=None)


class _Header(NamedTuple):
    """`is_kept`: the shard's reader gets the same pixels from the file as it is, if no pixel is transparent."""

    height: int
    width: int
    is_kept: bool
    is_plain_jpeg: bool = False
    has_alpha: bool = False
    is_whole: bool = True


def _read_header(data: bytes) -> _Header:
    if data.startswith(b"\xff\xd8\xff"):
        return _read_jpeg_header(data)
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _read_png_header(data)
    if data.startswith((b"GIF8", b"BM", b"II*\0", b"MM\0*")) or (data.startswith(b"RIFF") and data[8:12] == b"WEBP"):
        with _open_with_pillow(data) as image:
            return _Header(image.height, image.width, is_kept=False, has_alpha=image.has_transparency_data)
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


def _settled_boxes(example: Example, header: _Header) -> tuple[Box, ...] | None:
    """After decoding, because Pillow may have to decode a PNG to find its EXIF."""
    if example.boxes is None:
        return None
    stored, orientation = (header.height, header.width), 1
    if not header.is_kept and not header.is_plain_jpeg:
        with _open_with_pillow(example.encoded) as image:
            orientation = image.getexif().get(0x0112, 1)
            if image.format == "TIFF" and orientation in (5, 6, 7, 8):  # of this format alone, Pillow tells the upright size
                stored = stored[::-1]
    return settle_boxes(example.boxes, example.frame, stored, orientation)


def _read_png_header(data: bytes) -> _Header:
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise Reject("truncated", f"a PNG of {len(data)} bytes ends inside its header")
    width, height, bits, color_type = struct.unpack(">IIBB", data[16:26])
    chunks = _png_chunks(data)
    # A turned PNG is rare: whatever has EXIF is encoded anew. Of an animation (acTL) readers may see different frames.
    return _Header(height, width, is_kept=bits <= 8 and not chunks & {b"eXIf", b"acTL"},
                   has_alpha=color_type in _PNG_WITH_ALPHA or b"tRNS" in chunks, is_whole=b"IEND" in chunks)


def _png_chunks(data: bytes) -> set[bytes]:
    """The names of the chunks that are in the file to their end.

    OpenCV believes the length that a chunk says it has, and reserves up to 4 GB for it, so the lengths are checked here.
    """
    found, place = set(), 8
    while place + 12 <= len(data):
        length, name = struct.unpack_from(">I4s", data, place)
        place += 12 + length
        if place <= len(data):
            found.add(name)
        if name == b"IEND":
            break
    return found


_PNG_WITH_ALPHA = (4, 6)  # grey and alpha, RGB and alpha; a palette has a tRNS chunk instead


@contextlib.contextmanager
def _open_with_pillow(data: bytes) -> Iterator:
    """Opening reads the header and EXIF only. Raises Reject for whatever goes wrong in the block."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # its limit is a warning first and too high then; ours is `max_megapixels`
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")) as image:
            yield image
    except (Reject, MemoryError):
        raise
    except Exception as error:  # on broken files Pillow's parsers raise nearly anything
        raise Reject("corrupt", str(error) or type(error).__name__) from None


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


def _decode_on(background: Color, data: bytes, channels: int) -> tuple[np.ndarray, bool]:
    """The image on a background, and whether no pixel is transparent. With Pillow, which knows every kind of transparency."""
    import numpy as np
    from PIL import Image, ImageOps

    with _open_with_pillow(data) as image:
        layer = ImageOps.exif_transpose(image).convert("RGBA")
        lowest_alpha = layer.getextrema()[3][0]
        below = Image.new("RGBA", layer.size, (*background, 255))
        flat = Image.alpha_composite(below, layer).convert("L" if channels == 1 else "RGB")
        return np.array(flat).reshape(flat.height, flat.width, channels), lowest_alpha == 255


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
        raise Reject("corrupt", f"{len(data)} bytes that can't be decoded to the end")
    return image.reshape(*image.shape[:2], channels)
