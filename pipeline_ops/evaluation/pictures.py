"""Test images as data URIs, small enough for a self-contained page."""

from __future__ import annotations

import base64
import io

_MAX_BYTES = 48 << 10
"""A larger file is shown as a smaller picture."""
_MAX_PIXELS = 256
_TYPES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}


def data_uri(image: bytes) -> str | None:
    """Returns `data:image/png;base64,...` of an image file in any format that Pillow knows.

    PNG and JPEG stay as they are. Large files and all other formats become a PNG of at most 256 x
    256 pixels. Returns None for a file that is not an image.
    """
    kind = next((kind for magic, kind in _TYPES.items() if image.startswith(magic)), None)
    if kind and len(image) <= _MAX_BYTES:
        return _as_uri(kind, image)
    shrunk = _as_small_png(image)
    return shrunk and _as_uri("image/png", shrunk)


def _as_uri(kind: str, image: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(image).decode()}"


def _as_small_png(image: bytes) -> bytes | None:
    from PIL import Image  # only a few reports need it

    try:
        with Image.open(io.BytesIO(image)) as picture:
            picture.thumbnail((_MAX_PIXELS, _MAX_PIXELS))
            output = io.BytesIO()
            (
                picture
                if picture.mode in ("1", "L", "LA", "P", "RGB", "RGBA")
                else picture.convert("RGB")
            ).save(output, "PNG")
    except (
        OSError,
        ValueError,
        SyntaxError,
        Image.DecompressionBombError,
    ):  # Pillow raises SyntaxError for a broken PNG
        return None
    return output.getvalue()
