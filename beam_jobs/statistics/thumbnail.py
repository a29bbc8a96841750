"""Small pictures of bad records, as far as they can be decoded.

The content of such a record may be broken or malicious.
"""

from __future__ import annotations

import base64
import contextlib
import io
import struct
from collections.abc import Iterator
from typing import Any

_SIDE_PIXELS = 112
_MAX_PIXELS = 40e6
"""A larger image is not decoded, because it may be a decompression bomb."""
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")


def make_thumbnail(content: bytes) -> str | None:
    """Returns a picture of 112 pixels at most as `data:image/png;base64,...`.

    Of a truncated file, it shows the part that exists. Returns None if the file cannot be decoded.
    """
    from PIL import Image, ImageFile

    Image.MAX_IMAGE_PIXELS = None  # its limit only warns at first, and ours is below
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as picture:
            if picture.width * picture.height > _MAX_PIXELS:
                return None
            picture.draft("RGB", (_SIDE_PIXELS, _SIDE_PIXELS))  # decodes a JPEG at a reduced size
            with _allow_truncated_images(ImageFile):
                small = picture.convert("RGB")
            small.thumbnail((_SIDE_PIXELS, _SIDE_PIXELS))
            output = io.BytesIO()
            small.save(output, "PNG")
    except (
        OSError,
        ValueError,
        SyntaxError,
        TypeError,
        struct.error,
        MemoryError,
    ):  # the errors of Pillow for broken files
        return None
    return f"data:image/png;base64,{base64.b64encode(output.getvalue()).decode()}"


@contextlib.contextmanager
def _allow_truncated_images(pillow: Any) -> Iterator[None]:
    """Lets Pillow decode truncated images as far as they go.

    Pillow has this setting for the whole process only, so it is reset at once.
    """
    before, pillow.LOAD_TRUNCATED_IMAGES = pillow.LOAD_TRUNCATED_IMAGES, True
    try:
        yield
    finally:
        pillow.LOAD_TRUNCATED_IMAGES = before
