"""Parsers for the values of annotations, shared by all sources.

Each takes a value as a file has it, of any type, and raises Reject if the value is not valid.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from beam_jobs.stages.boxes import Size
from beam_jobs.stages.stage import Box, Reject

_IMAGE_SUFFIXES = frozenset(
    (".bmp", ".gif", ".jpe", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
)
_MAX_PATH_CHARACTERS, _MAX_PATH_PARTS = 4096, 64
CORNERS = ("ymin", "xmin", "ymax", "xmax")
SPLITS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "test": "test",
    "testing": "test",
}
"""Our splits by the names that annotations and folders have for them."""


def is_image_name(key: str) -> bool:
    """Returns whether a name ends as that of an image file does."""
    return posixpath.splitext(key)[1].lower() in _IMAGE_SUFFIXES


def make_box(
    coordinates: Iterable[Any], label: Any, is_difficult: Any = 0, is_crowd: Any = 0
) -> Box:
    """A box of ymin, xmin, ymax, xmax as a file has them. Raises Reject: malformed."""
    ymin, xmin, ymax, xmax = map(parse_number, coordinates)
    return Box(
        ymin, xmin, ymax, xmax, parse_text(label), parse_flag(is_difficult), parse_flag(is_crowd)
    )


def parse_box(fields: Mapping[str, Any]) -> Box:
    """A box of named fields. Raises Reject: malformed."""
    return make_box(
        [fields[name] for name in CORNERS],
        fields["label"],
        fields.get("is_difficult", 0),
        fields.get("is_crowd", 0),
    )


def parse_box_object(box: Any) -> Box:
    """A box as an object of JSON. Raises Reject: malformed."""
    if not isinstance(box, Mapping):
        raise Reject("malformed", "a box must be an object with xmin, ymin, xmax, ymax and label")
    if missing := [name for name in (*CORNERS, "label") if name not in box]:
        raise Reject("malformed", f"a box lacks {', '.join(missing)}")
    return parse_box(box)


def parse_json_object(content: bytes) -> dict[str, Any]:
    """An object of JSON. Raises Reject: malformed."""
    try:
        value = json.loads(content.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:
        raise Reject("malformed", f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Reject("malformed", f"must be an object, got {type(value).__name__}")
    return value


def parse_number(value: Any) -> float:
    """A number, or text that is one. Raises Reject: malformed."""
    if type(value) is float:  # the usual case, four times for each box of a data set
        return value
    if type(value) is int or (type(value) is str and "_" not in value):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise Reject("malformed", f"{_shorten(value)} is not a number")


def parse_text(value: Any) -> str:
    """Raises Reject: malformed."""
    if not isinstance(value, str):
        raise Reject("malformed", f"{_shorten(value)} is not text")
    return value.strip()


def parse_flag(value: Any) -> bool:
    """0 or 1, as number or text. Raises Reject: malformed."""
    if value in (0, 1):  # True and False are, too
        return bool(value)
    if value in ("0", "1", ""):
        return bool(value == "1")
    raise Reject("malformed", f"{_shorten(value)} must be 0 or 1")


def parse_size(height: Any, width: Any) -> Size | None:
    """The size of an annotated image, or None if it is missing or 0, as some tools write it.

    Raises Reject: malformed.
    """
    if height in (None, "") or width in (None, ""):
        return None
    size = parse_number(height), parse_number(width)
    if math.inf in size:
        raise Reject("malformed", f"the size of the image is {size[1]:g}x{size[0]:g}")
    return size if min(size) > 0 else None


def parse_split(value: Any) -> str | None:
    """Raises Reject: unknown_split."""
    if value in (None, ""):
        return None
    if not isinstance(value, str) or value not in SPLITS:
        raise Reject("unknown_split", f"{_shorten(value)}; splits are {', '.join(SPLITS)}")
    return SPLITS[value]


def iterate_path_ends(path: Any) -> Iterator[str]:
    """The path without its root, and then without its first folder, its second, and so on.

    It may be a path of Windows. Raises Reject: malformed.
    """
    if not isinstance(path, str) or len(path) > _MAX_PATH_CHARACTERS:
        raise Reject(
            "malformed", f"a path must be text of at most {_MAX_PATH_CHARACTERS} characters"
        )
    parts = [part for part in re.split(r"[/\\]", path) if part not in ("", ".")]
    if len(parts) > _MAX_PATH_PARTS:
        raise Reject("malformed", f"a path of {len(parts)} parts, allowed are {_MAX_PATH_PARTS}")
    return ("/".join(parts[start:]) for start in range(len(parts)))


def escape_surrogates(value: str) -> str:
    """Escapes lone halves of surrogate pairs, which JSON and UTF-8 do not allow."""
    return value.encode("utf-8", "backslashreplace").decode()


def _shorten(value: Any) -> str:
    try:
        return repr(value)[:80]
    except ValueError:  # of a number with thousands of digits
        return f"a {type(value).__name__} too large to print"
