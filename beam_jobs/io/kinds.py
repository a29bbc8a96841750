"""The kinds of an image file: its format, and the properties that decoders treat differently.

The raw test records of a data set have some of each kind, because a published model must decode all
of them as the stages do. `beam_jobs/output/raw_test.py` calls this module.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

_FORMATS = {"JPEG": "JPEG", "MPO": "JPEG", "WEBP": "WebP"}
_GREY_MODES, _COLOR_MODES = ("1", "L", "LA", "I"), ("RGB", "RGBA", "CMYK")
_ORIENTATION_TAG, _BITS_TAG = 0x0112, 258
_PNG_BITS_AT = 24
_LARGE_PIXELS = 20e6
_LONG_RATIO = 4
Shape = tuple[int, int, int]


def list_kinds(data: bytes, decoded: Shape, result: Shape) -> list[str]:
    """The kinds of a file, its format first. Reads only headers.

    `data` is a file that `decode` accepts, `decoded` the shape that it had after that stage, and
    `result` its shape after all stages.
    """
    height, width, channels = decoded
    kinds = _list_properties(data, channels)
    if max(height, width) > _LONG_RATIO * min(height, width):
        kinds.append("beyond 1:4")
    if height < result[0] or width < result[1]:
        kinds.append("small")
    if height * width > _LARGE_PIXELS:
        kinds.append("above 20 megapixels")
    return kinds


def _list_properties(data: bytes, channels: int) -> list[str]:
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # `decode` has a limit of its own
    try:
        with Image.open(io.BytesIO(data)) as image:
            return list(_iterate_properties(image, data, channels))
    except MemoryError:
        raise
    except Exception:  # a file that `decode` accepts, and Pillow's parser does not
        return ["unusual"]


def _iterate_properties(image: ImageFile, data: bytes, channels: int) -> Iterator[str]:
    format_, mode = image.format or "", image.mode.partition(";")[0]
    name = _FORMATS.get(format_, format_)
    yield f"progressive {name}" if "progressive" in image.info else name
    # To find the EXIF of a PNG that has it at its end, Pillow would decode the pixels.
    has_exif = format_ == "TIFF" or "exif" in image.info
    orientation = image.getexif().get(_ORIENTATION_TAG, 1) if has_exif else 1
    # The bits of a channel, if Pillow's mode does not tell them.
    is_png = format_ == "PNG"
    bits = data[_PNG_BITS_AT:][:1] if is_png else getattr(image, "tag_v2", {}).get(_BITS_TAG, ())
    kinds = {
        f"EXIF {orientation}": orientation in range(2, 9),
        "CMYK": mode == "CMYK",
        "alpha": image.has_transparency_data,
        "palette": mode in ("P", "PA"),
        "grey": mode in _GREY_MODES and channels == 3,
        "colour": mode in _COLOR_MODES and channels == 1,
        "16 bit": mode == "I" or 16 in bits,
        "1 bit": mode == "1",
    }
    yield from (kind for kind, is_one in kinds.items() if is_one)
