"""Test images for a person: as data URIs for a page, and the choice of those with predictions."""

from __future__ import annotations

import base64
import hashlib
import io

_MAX_BYTES = 48 << 10
"""A larger file is shown as a smaller picture."""
_MAX_PIXELS = 256
_TYPES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}

NUM_SHOWN = 24
"""Mistakes, and surprises, that a report shows as pictures."""
NUM_PREDICTIONS = 3
"""The number of test images in `predictions.png`."""


def rank_key(key: str) -> float:
    """Returns a number from 0 to 1 by which to draw examples at random, always the same ones."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=6).digest()) / 2**48


def to_data_uri(image: bytes) -> str | None:
    """Returns `data:image/png;base64,...` of an image file in any format that Pillow knows.

    PNG and JPEG stay as they are. Large files and all other formats become a PNG of at most 256 x
    256 pixels. Returns None for a file that is not an image.
    """
    kind = next((kind for magic, kind in _TYPES.items() if image.startswith(magic)), None)
    if kind is None or len(image) > _MAX_BYTES:
        shrunk = _to_small_png(image)
        if shrunk is None:
            return None
        kind, image = "image/png", shrunk
    return f"data:{kind};base64,{base64.b64encode(image).decode()}"


def _to_small_png(image: bytes) -> bytes | None:
    from PIL import Image  # only a few reports need it

    output = io.BytesIO()
    try:
        with Image.open(io.BytesIO(image)) as picture:
            picture.thumbnail((_MAX_PIXELS, _MAX_PIXELS))
            is_png_mode = picture.mode in ("1", "L", "LA", "P", "RGB", "RGBA")
            (picture if is_png_mode else picture.convert("RGB")).save(output, "PNG")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None  # Pillow raises SyntaxError for a broken PNG
    return output.getvalue()
