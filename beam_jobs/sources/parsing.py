"""Parsers for the values of annotations, for outlines and for XML, shared by all sources.

Each takes a value as a file has it, of any type, and raises Reject if it is invalid. The reason is
`malformed` unless a docstring names another one.
"""

from __future__ import annotations

import codecs
import contextlib
import itertools
import json
import math
import posixpath
import re
import sys
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from beam_jobs.stages.boxes import Size
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.raw_data.limits import (
    MAX_PATH_CHARACTERS,
    MAX_PATH_PARTS,
    MAX_TEXT_CHARACTERS,
    MAX_XML_ELEMENT_BYTES,
)

Point = tuple[float, float]  # x, y
Corners = tuple[float, float, float, float]  # ymin, xmin, ymax, xmax

_IMAGE_SUFFIXES = {
    *(".bmp", ".dib", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".mpo", ".pbm", ".pgm", ".png"),
    *(".pjpeg", ".pnm", ".ppm", ".tif", ".tiff", ".webp"),
    *(".avif", ".heic", ".heif", ".jp2"),  # which `decode` names when it rejects them
}
_FALSE = ("0", "0.0", "false", "no", "f", "n", "", "null", "none", "unspecified")
_FLAGS = dict.fromkeys(_FALSE, False) | dict.fromkeys(("1", "1.0", "true", "yes", "t", "y"), True)
"""The values of flags as tools write them, in lower case. Copies of labelImg write Unspecified."""
_ENCODINGS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Encodings by the byte order mark that a file begins with. UTF-32 begins as UTF-16 does."""
_SUPERSETS = {
    **dict.fromkeys(("gb2312", "gb-2312", "gbk"), "gb18030"),
    **dict.fromkeys(("shift_jis", "shift-jis", "sjis"), "cp932"),
    **dict.fromkeys(("euc-kr", "ks_c_5601-1987"), "cp949"),
    "big5": "cp950",
}
"""Encodings with all characters that Windows writes under the name of a smaller one."""
_XML_ENCODING = re.compile(r"""(<\?xml\b[^>]{0,200}?)\s+encoding\s*=\s*["']([\w.:-]{1,40})["']""")
_BLOCK_BYTES = 1 << 18
CORNERS = ("ymin", "xmin", "ymax", "xmax")
_SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "eval", "evaluation"), "validation"),
    **dict.fromkeys(("test", "testing", "holdout"), "test"),
}
"""Our splits by the words that annotations, files and folders have for them."""
_PLAIN_WORDS = frozenset(("set", "data", "dataset", "image", "images", "img", "imgs", "split"))
"""Words that say nothing about a split, as in `training_set`, alone or behind its word."""
_COMPOUND = re.compile(f"({'|'.join(_SPLIT_WORDS)})({'|'.join(_PLAIN_WORDS)})")
_NEGATIONS = frozenset(("no", "non", "not", "without", "excluded", "ignored", "unused"))


def find_split(name: str) -> str | None:
    """Our split that a name such as `training_set`, `val2017` or `animals_test` has as a word.

    None if no word is one of a split, or two splits are named, or the name denies it.
    """
    words = _divide_words(name)
    found = {_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS}
    return found.pop() if len(found) == 1 and not _NEGATIONS.intersection(words) else None


def find_split_of_path(path: str) -> str | None:
    """Our split that a path such as `train/instances_default.json` has as a word.

    Words of the file's name come first. None if they name none, or more than one.
    """
    return find_split(posixpath.basename(path)) or find_split(path)


def name_part(key: str, file_key: str, images: str = ".") -> dict[str, Any]:
    """A part of a source: the key of its file, the folder of its images, and its split, if any."""
    part = {key: file_key, "images": images, "split": find_split_of_path(file_key)}
    return {name: value for name, value in part.items() if value not in (".", None)}


def find_split_names(folders: Iterable[str]) -> dict[str, str]:
    """Our splits by the names of folders, if these are folders of splits: train and another one.

    Names that differ otherwise, such as those of the classes steam_train and test_tube, are none,
    unless the other one has no further word: train_a, train_b, test.
    """
    found = {folder: split for folder in sorted({*folders}) if (split := find_split(folder))}
    rests = {folder: get_other_words(folder) for folder in found}
    train = {rests[folder] for folder, split in found.items() if split == "train"}
    others = {rests[folder] for folder, split in found.items() if split != "train"}
    return found if train & others or (train and () in others) else {}


def find_splits_of_keys(keys: Iterable[str]) -> dict[str, str]:
    """Our splits by the keys of files in folders of splits, which stand at one depth."""
    folders = {key: key.split("/")[:-1] for key in keys}
    for depth in range(max(map(len, folders.values()), default=0)):
        names = {key: parts[depth] for key, parts in folders.items() if len(parts) > depth}
        if splits := find_split_names(names.values()):
            return {key: splits[name] for key, name in names.items() if name in splits}
    return {}


def get_other_words(name: str) -> tuple[str, ...]:
    """The words of a name besides those of splits and sets."""
    words = _divide_words(name)
    return tuple(word for word in words if word not in _SPLIT_WORDS.keys() | _PLAIN_WORDS)


def _divide_words(name: str) -> list[str]:
    """The words in lower case. Digits, other signs and camel case divide, and `trainset` is two."""
    text = re.sub(r"([a-z])([A-Z])", r"\1 \2", unicodedata.normalize("NFC", name))
    words: list[str] = []
    for word in re.findall(r"[^\W\d_]+", text):
        compound = _COMPOUND.fullmatch(word.lower())
        words += compound.groups() if compound else [word.lower()]
    return words


def is_image_name(key: str) -> bool:
    return posixpath.splitext(key)[1].lower() in _IMAGE_SUFFIXES


def make_box(
    coordinates: Iterable[Any], label: Any, is_difficult: Any = 0, is_crowd: Any = 0
) -> Box:
    """A box of ymin, xmin, ymax, xmax as a file has them."""
    ymin, xmin, ymax, xmax = map(parse_number, coordinates)
    flags = parse_flag(is_difficult, "is_difficult"), parse_flag(is_crowd, "is_crowd")
    return Box(ymin, xmin, ymax, xmax, parse_text(label), *flags)


def parse_box(box: Any) -> Box:
    """A box as an object of JSON, or as another mapping."""
    if not isinstance(box, Mapping):
        raise Reject("malformed", "a box must be an object with xmin, ymin, xmax, ymax and label")
    if missing := [name for name in (*CORNERS, "label") if name not in box]:
        raise Reject("malformed", f"a box lacks {', '.join(missing)}")
    corners = [box[name] for name in CORNERS]
    return make_box(corners, box["label"], box.get("is_difficult", 0), box.get("is_crowd", 0))


def describe_json_error(error: Exception) -> str:
    """The text for JSON that cannot be read, without the cure of Python for long numbers."""
    return f"not JSON: {str(error).partition('; use sys.')[0]}"


def parse_json_object(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(decode_text(content))
    except (ValueError, RecursionError) as error:
        raise Reject("malformed", describe_json_error(error)) from None
    if not isinstance(value, dict):
        raise Reject("malformed", f"must be an object, got {type(value).__name__}")
    return value


def parse_number(value: Any) -> float:
    """A number, or text that is one."""
    if type(value) is float:  # the usual case, four times for each box of a data set
        return value
    if type(value) is int or (type(value) is str and "_" not in value):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise Reject("malformed", f"{_shorten(value)} is not a number")


def decode_text(content: bytes, errors: str = "strict") -> str:
    """Text in UTF-8, or in the encoding of its byte order mark. Excel's text has one of UTF-16.

    Text in UTF-16 without a mark shows in the zeros of its first two characters. Raises
    UnicodeDecodeError unless `errors` says otherwise, as for `bytes.decode`.
    """
    zeros = [number for number, byte in enumerate(content[:4]) if not byte]
    usual = "utf-16-le" if zeros == [1, 3] else "utf-16-be" if zeros == [0, 2] else "utf-8"
    encoding = next((name for mark, name in _ENCODINGS if content.startswith(mark)), usual)
    return content.decode(encoding, errors)


def parse_utf8(content: bytes, name: str) -> str:
    """The text of a file or of a field, which messages call `name`. See `decode_text`."""
    try:
        return decode_text(content)
    except UnicodeDecodeError:
        raise Reject("malformed", f"{name} is not UTF-8: {content[:40]!r}") from None


def check_size(num_bytes: int, max_bytes: int, name: str) -> None:
    """Raises Reject: too_large."""
    if num_bytes > max_bytes:
        raise Reject("too_large", f"{name} of {num_bytes} bytes, allowed are {max_bytes}")


def parse_text(value: Any) -> str:
    """Text without blanks around it, in Unicode's form C. A whole number may be a name, too.

    Raises Reject: too_large, too.
    """
    if type(value) is int or (type(value) is float and value.is_integer()):
        value = str(int(value))
    if not isinstance(value, str):
        raise Reject("malformed", f"{_shorten(value)} is not text")
    if len(value) > MAX_TEXT_CHARACTERS:
        detail = f"a text of {len(value)} characters, allowed are {MAX_TEXT_CHARACTERS}"
        raise Reject("too_large", f"{detail}: {_shorten(value[:40])}")
    text = unicodedata.normalize("NFC", value.strip())
    return sys.intern(text)  # millions of equal labels share their memory


def parse_id(value: Any) -> str | None:
    """An identifier, which one list of a file has as a number and another one as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    is_whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if is_whole else value).strip() or None


def parse_flag(value: Any, name: str) -> bool:
    """A flag as tools write it: 0 or 1, true or false, null, Unspecified. `name` is its key."""
    text = "" if value is None else str(value).strip().lower()
    if isinstance(value, bool | int | float | str | None) and text in _FLAGS:
        return _FLAGS[text]
    raise Reject("malformed", f"{name}: {_shorten(value)} must be 0 or 1, true or false")


def parse_size(height: Any, width: Any) -> Size | None:
    """The size of an annotated image, or None if it is missing or 0, as some tools write it."""
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
    split = find_split(value) if isinstance(value, str) else None
    if split is None:
        raise Reject("unknown_split", f"{_shorten(value)}; splits are {', '.join(_SPLIT_WORDS)}")
    return split


def iterate_path_ends(path: Any) -> Iterator[str]:
    """The path without its root, then without its first folder, and so on. It may be of Windows."""
    if not isinstance(path, str) or len(path) > MAX_PATH_CHARACTERS:
        limit = f"text of at most {MAX_PATH_CHARACTERS} characters"
        raise Reject("malformed", f"a path must be {limit}")
    parts = [part for part in re.split(r"[/\\]", path) if part not in ("", ".")]
    if len(parts) > MAX_PATH_PARTS:
        raise Reject("malformed", f"a path of {len(parts)} parts, allowed are {MAX_PATH_PARTS}")
    return ("/".join(parts[start:]) for start in range(len(parts)))


def escape_surrogates(value: str) -> str:
    """Escapes lone halves of surrogate pairs, which JSON and UTF-8 do not allow."""
    return value.encode("utf-8", "backslashreplace").decode()


def parse_points(points: Any) -> list[Point]:
    """The points of a list of pairs, x and y."""
    is_list = isinstance(points, list)
    if not is_list or not all(isinstance(each, list) and len(each) == 2 for each in points):
        raise Reject("malformed", "a shape needs a list of points, [x, y]")
    return [(parse_number(x), parse_number(y)) for x, y in points]


def enclose(points: Sequence[Point]) -> Corners:
    """The smallest upright rectangle around some points. Raises Reject: box_not_finite, too."""
    if len(points) < 3:
        raise Reject("malformed", f"a polygon needs three points, and this one has {len(points)}")
    xs, ys = zip(*points, strict=True)
    if not all(map(math.isfinite, (*xs, *ys))):  # min and max ignore NaN
        raise Reject("box_not_finite", "a polygon with a point that is not finite")
    return min(ys), min(xs), max(ys), max(xs)


def enclose_ellipse(x: float, y: float, x_radius: float, y_radius: float, angle: float) -> Corners:
    """The smallest upright rectangle around an ellipse that is turned by an angle in radians."""
    right = math.hypot(x_radius * math.cos(angle), y_radius * math.sin(angle))
    down = math.hypot(x_radius * math.sin(angle), y_radius * math.cos(angle))
    return y - down, x - right, y + down, x + right


def enclose_mask(size: Any, counts: Any) -> Corners:
    """The smallest upright rectangle around a mask in COCO's run-length encoding.

    Runs of pixels outside and inside of the mask alternate, down the columns of an image of `size`,
    height and width. They are numbers, or text as `rleToString` of COCO's `maskApi.c` writes it.
    """
    if not isinstance(size, list) or len(size) != 2 or not all(type(n) is int for n in size):
        raise Reject("malformed", "the size of a mask must be height and width")
    runs = _parse_runs(counts) if isinstance(counts, str) else counts
    height, width = size
    if not isinstance(runs, list) or not all(type(n) is int and n >= 0 for n in runs):
        raise Reject("malformed", "the counts of a mask must be numbers, or their text")
    if sum(runs) != height * width:
        raise Reject("malformed", f"a mask of {sum(runs)} pixels, for an image of {width}x{height}")
    ends = list(itertools.accumulate(runs))
    pairs = zip(ends[::2], ends[1::2], strict=False)  # a last run outside of the mask has no other
    spans = [(start, end - 1) for start, end in pairs if start < end]
    if not spans:
        raise Reject("malformed", "a mask without pixels")
    (left, _), (right, _) = divmod(spans[0][0], height), divmod(spans[-1][1], height)
    has_turn = any(start // height != end // height for start, end in spans)
    ymin = 0 if has_turn else min(start % height for start, _ in spans)
    ymax = height if has_turn else max(end % height for _, end in spans) + 1
    return ymin, left, ymax, right + 1


def _parse_runs(text: str) -> list[int]:
    """Each number is groups of five bits with a bit for more. The fourth on are differences."""
    runs, value, shift = list[int](), 0, 0
    for character in text:
        group = ord(character) - 48
        if not 0 <= group < 64 or shift > 60:
            raise Reject("malformed", f"{character!r} in the counts of a mask")
        value, shift = value | (group & 0x1F) << shift, shift + 5
        if not group & 0x20:
            value -= (1 << shift) if group & 0x10 else 0
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value, shift = 0, 0
    return runs


def make_rotated_box(
    corners: Corners,
    degrees: float,
    label: Any,
    size: Size | None,
    pivot: Point | None = None,
    is_crowd: bool = False,
) -> Box:
    """The smallest upright box around a rectangle in pixels that is turned clockwise.

    It turns around its center, or around `pivot`. It is clipped to the size of the image, if that
    is known, because tools let a person turn an object beyond. A box outside of the image as a
    whole stays as it is, so that its check fails. Raises Reject: box_not_finite, too.
    """
    if not degrees:
        return make_box(corners, label, is_crowd=is_crowd)
    if not math.isfinite(degrees):
        raise Reject("box_not_finite", f"a rotation by {degrees} degrees")
    ymin, xmin, ymax, xmax = corners
    x, y = pivot or ((xmin + xmax) / 2, (ymin + ymax) / 2)
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    moved = [(right - x, down - y) for right in (xmin, xmax) for down in (ymin, ymax)]
    turned = [(x + a * cosine - b * sine, y + a * sine + b * cosine) for a, b in moved]
    box = make_box(enclose(turned), label, is_crowd=is_crowd)
    return box if size is None else box.clip(*size) or box


def iterate_children(content: bytes, root_tag: str) -> Iterator[ElementTree.Element]:
    """Yields the elements directly below the root of an XML file. Few are in memory at a time."""
    content = _to_utf8(content)
    if b"<!DOCTYPE" in content.replace(b"\0", b""):  # it may declare entities
        raise Reject("malformed", "declares a document type, which no annotation needs")
    parser: Any = ElementTree.XMLPullParser(("start", "end"))
    around, last = list[ElementTree.Element](), 0
    try:
        for start in range(0, len(content) + _BLOCK_BYTES, _BLOCK_BYTES):  # the last one is empty
            block, children = content[start : start + _BLOCK_BYTES], []
            if block:
                parser.feed(block)
            else:
                parser.close()
            for event, element in parser.read_events():
                if not around and element.tag != root_tag:
                    detail = f"the XML is a <{element.tag}> and not an <{root_tag}>"
                    raise Reject("malformed", detail)
                if event == "start":
                    around.append(element)
                    continue
                around.pop()
                if len(around) == 1:
                    children.append(element)
                    around[0].clear()
            if children:
                last = start
            elif start - last > MAX_XML_ELEMENT_BYTES:
                raise Reject("malformed", f"an element has more than {MAX_XML_ELEMENT_BYTES} bytes")
            yield from children
    # ValueError, LookupError: an encoding that does not exist
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise Reject("malformed", f"not well-formed XML: {error}") from None


def read_xml_starts(content: bytes) -> list[tuple[str, dict[str, str]]]:
    """The tags and attributes of the elements that begin in the first part of an XML file.

    Empty if it is none. What is wrong further on does not matter.
    """
    parser: Any = ElementTree.XMLPullParser(("start",))
    found: list[tuple[str, dict[str, str]]] = []
    with contextlib.suppress(Reject, ElementTree.ParseError, ValueError, LookupError):
        parser.feed(_to_utf8(content, "replace"))
        for _, element in parser.read_events():
            found.append((element.tag, element.attrib))
    return found


def _to_utf8(content: bytes, errors: str = "strict") -> bytes:
    """The XML in UTF-8 unless the parser knows its encoding. Raises Reject if it is another one.

    A byte order mark is right where the declaration is not. So is the start `<?xml` in single
    bytes, where .NET declares UTF-16.
    """
    marked = any(content.startswith(mark) for mark, _ in _ENCODINGS)
    declared = _XML_ENCODING.search(content[:300].decode("latin-1"))
    name = declared[2].lower() if declared else "utf-8"
    if not marked and name in ("utf-8", "us-ascii", "iso-8859-1"):
        return content
    is_wide = name.replace("_", "-").startswith(("utf-16", "utf-32", "unicode"))
    encoding = "utf-8" if is_wide else _SUPERSETS.get(name, name)
    try:
        text = decode_text(content, errors) if marked else content.decode(encoding, errors)
    except (UnicodeDecodeError, LookupError) as error:
        detail = f"not well-formed XML in the encoding {name}: {error}. Save the file as UTF-8"
        raise Reject("malformed", detail) from None
    return _XML_ENCODING.sub(r"\1", text, count=1).encode("utf-8", "surrogatepass")


def _shorten(value: Any) -> str:
    try:
        return repr(value)[:80]
    except ValueError:  # of a number with thousands of digits
        return f"a {type(value).__name__} too large to print"
