"""Small pictures of bad records, as far as they can be decoded at all. What they hold may be broken, or made to do harm."""

from __future__ import annotations

import base64
import contextlib
import io
import struct
from collections.abc import Iterator
from typing import Any

_SIDE_PIXELS = 112
_MAX_PIXELS = 40e6
"""A larger image is not decoded: it may be a bomb."""
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")


def thumbnail(content: bytes) -> str | None:
    """`data:image/png;base64,...` of 112 pixels at most, also of what is there of a truncated file; None if nothing can be shown."""
    from PIL import Image, ImageFile

    Image.MAX_IMAGE_PIXELS = None  # its limit is a warning first; ours is below
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as picture:
            if picture.width * picture.height > _MAX_PIXELS:
                return None
            picture.draft("RGB", (_SIDE_PIXELS, _SIDE_PIXELS))  # of a JPEG, only a part of the pixels is decoded
            with _forgiving(ImageFile):
                small = picture.convert("RGB")
            small.thumbnail((_SIDE_PIXELS, _SIDE_PIXELS))
            output = io.BytesIO()
            small.save(output, "PNG")
    except (OSError, ValueError, SyntaxError, TypeError, struct.error, MemoryError):  # what Pillow says to broken files
        return None
    return f"data:image/png;base64,{base64.b64encode(output.getvalue()).decode()}"


@contextlib.contextmanager
def _forgiving(pillow: Any) -> Iterator[None]:
    """A truncated image is what there is of it. Pillow knows that only for all of a process, so it is undone at once."""
    before, pillow.LOAD_TRUNCATED_IMAGES = pillow.LOAD_TRUNCATED_IMAGES, True
    try:
        yield
    finally:
        pillow.LOAD_TRUNCATED_IMAGES = before
