"""Test images as data URIs, small enough for a page that holds everything itself."""

from __future__ import annotations

import base64
import io

_MAX_BYTES = 48 << 10
"""A larger file is shown as a smaller picture."""
_MAX_PIXELS = 256
_TYPES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}


def data_uri(image: bytes) -> str | None:
    """`data:image/png;base64,...` of an image file in any format that Pillow knows; None if it is no image.

    PNG and JPEG stay as they are; everything else, and what is large, becomes a PNG of 256 pixels at most.
    """
    kind = next((kind for magic, kind in _TYPES.items() if image.startswith(magic)), None)
    if kind and len(image) <= _MAX_BYTES:
        return _as_uri(kind, image)
    shrunk = _as_small_png(image)
    return shrunk and _as_uri("image/png", shrunk)


def _as_uri(kind: str, image: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(image).decode()}"


def _as_small_png(image: bytes) -> bytes | None:
    from PIL import Image  # only few reports need it

    try:
        with Image.open(io.BytesIO(image)) as picture:
            picture.thumbnail((_MAX_PIXELS, _MAX_PIXELS))
            output = io.BytesIO()
            (picture if picture.mode in ("1", "L", "LA", "P", "RGB", "RGBA") else picture.convert("RGB")).save(output, "PNG")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # SyntaxError is what Pillow says to a broken PNG
        return None
    return output.getvalue()
