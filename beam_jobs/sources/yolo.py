"""YOLO: a file that names the classes and maybe the splits, and a text file for each image.

A line is `class x y width height` with the centre of the box, or `class x1 y1 x2 y2 x3 y3 ...` for
a polygon. All numbers are fractions of the upright image. The classes are in Ultralytics'
`data.yaml`, in a `.data` file of Darknet, or one a line in a file such as `classes.txt`.

A list of images may have the boxes itself, as for keras-yolo3, corners in pixels and the class:
`path x1,y1,x2,y2,class x1,y1,x2,y2,class`.

`path` in `data.yaml` often names a folder of another machine, or one below Ultralytics' own folder
of data sets. So it is looked for below the folder of `data.yaml`, then the same without its first
folder, and so on, until there is something in it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import beam_jobs.sources.parsing as parsing
from beam_jobs.io.raw import RawReader, read_raw
from beam_jobs.sources.box_formats import SizedBox, find_better, to_corners
from beam_jobs.sources.folder_view import FolderView, Question, SourceMatch
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.sources.wording import count, join_names, unless
from beam_jobs.stages.boxes import FRACTIONS
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.reading import Location, YamlProblem, read_yaml, reject_nesting
from pipeline_ops.config.sources import YoloSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.limits import (
    MAX_CLASSES,
    MAX_DESCRIPTION_BYTES,
    MAX_SAMPLE_ANNOTATION_BYTES,
)
from pipeline_ops.raw_data.raw_file import RawFile, match_without_case

_SPLITS = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}
_CLASS_FILE = re.compile(
    r"(.*[/._-])?(class(es)?|names|labels)\.txt|.*\.(names|labels)", re.I | re.S
)
_DARKNET_KEYS = {"train": "train", "valid": "val", "test": "test", "names": "names"}
"""Our keys by those of a `.data` file of Darknet."""
_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:")
_TOLERANCE = 0.01
"""Maximum distance of a coordinate from the range 0 to 1. Ultralytics allows the same."""
_FIVE_NUMBERS = re.compile(r"[-+.\d]+(,[-+.\d]+){4}")
_OTHER_SUFFIXES = (".txt", ".npy", ".cache")
"""Suffixes of files that YOLO keeps next to images. All other files there count as images."""


class _Image(NamedTuple):
    """An image, and its boxes if the list that names it has them."""

    file: RawFile
    split: str | None
    where: str
    boxes: Sequence[Box] | None = None


class _Listed(NamedTuple):
    """A folder of images, or a list of their paths, named in a line such as `data.yaml:3`."""

    key: str
    is_folder: bool
    split: str | None
    line: str

    @property
    def prefix(self) -> str:
        return "" if self.key == "." else f"{self.key}/"


class _Description(NamedTuple):
    """The values of `data.yaml`, or of another file in its place, and their lines for messages."""

    name: str
    values: Mapping[str, Any]
    lines: Mapping[Location, int]

    def locate(self, *location: str | int) -> str:
        """The file and the line of a value: `data.yaml:3`."""
        line = self.lines.get(location) or self.lines.get(location[:1], 1)
        return f"{self.name}:{line}"

    def make_error(self, message: str, *location: str | int) -> DataError:
        key = f"{location[0]}: " if location else ""
        return DataError(f"{self.locate(*location)}: {key}{message}")


def read_entries(files: SourceFiles, source: YoloSource) -> Iterator[SourceEntry]:
    description = _read_description(files, source.data)
    names = _parse_names(description, files)
    if _CLASS_FILE.fullmatch(source.data):
        lists = _find_list_keys(files.by_key, source.data, files.read)
        listed = [_Listed(key, False, split, f"{source.data}:1") for key, split in lists.items()]
    else:
        listed = _find_listed_paths(description, files)
    by_label: dict[str, list[_Image]] = defaultdict(list)
    for image in _find_images(listed, files, source, names):
        if image.boxes is None:
            by_label[_find_label_key(image.file.key, files)].append(image)
        else:
            with files.entry(image.where, image.file.key):
                yield SourceEntry(image.file, boxes=image.boxes, split=image.split)
    others, lost = _match_other_names(files, by_label, names)
    labels = {key: file for key in by_label if (file := files.by_key.get(others.get(key, key)))}
    if by_label and not labels:
        key, (image, *_) = next(iter(by_label.items()))
        raise DataError(
            f"{files.listing.folder}: none of the {len(by_label)} images has a label file. That of "
            f"{image.file.key} would be {key}. Put the label files there, or correct {source.data}."
        )
    reader, num_empty = RawReader(labels.values(), files.listing.folder), 0
    for key, images in by_label.items():
        keys = sorted({image.file.key for image in images})
        for image_key in keys if len(keys) > 1 else ():
            detail = f"{key} is the label file of each of {', '.join(keys)}"
            with files.entry(image_key, image_key):
                raise Reject("ambiguous_image", detail)
        if len(keys) == 1:
            with files.entry(images[0].where, keys[0]) as entry:
                if (folder := posixpath.dirname(key)) in lost and key not in labels:
                    detail = f"there is no label file {key}, and {lost[folder]} has no image"
                    raise Reject("no_annotation", f"{detail}. Give both the same name")
                label_file = files.get(others.get(key, key))
                boxes = _parse_labels(reader.read(label_file), names) if label_file else ()
                num_empty += label_file is not None and not boxes
                for file, split, entry.where, _ in images:
                    yield SourceEntry(
                        file, boxes=boxes, split=split, frame=FRACTIONS, drawn_on="upright"
                    )
    prefixes = {_to_labels(item.prefix) for item in listed if item.is_folder}
    prefixes -= {item.prefix for item in listed}
    if not listed:
        prefixes = {f"{posixpath.dirname(key)}/" for key in labels if "labels" in key.split("/")}
    _reject_unused_labels(tuple(prefixes), files, {*by_label, *others.values()})
    if labels and num_empty == len(labels):
        fault = f"found none: {num_empty} label files are there, and all of them are empty"
        where = f"{files.listing.folder}: a detector needs boxes"
        raise DataError(f"{where}, {fault}. Export the annotations again.")


def _find_images(
    listed: Collection[_Listed],
    files: SourceFiles,
    source: YoloSource,
    names: Mapping[int, str],
) -> Iterator[_Image]:
    """The images of all listed paths, or all images, with the splits of their folders."""
    every = [*files.by_key, *files.unreadable]
    splits = {} if listed else parsing.find_splits_of_keys(filter(parsing.is_image_name, every))
    for item in listed or [_Listed(".", True, None, source.data)]:
        if not item.is_folder:
            yield from _read_list(item, files, source, names)
            continue
        for key in every:
            is_other = (
                key.lower().endswith(_OTHER_SUFFIXES) if listed else not parsing.is_image_name(key)
            )
            if key.startswith(item.prefix) and not is_other:
                with files.entry(key, key):
                    if file := files.get(key):
                        yield _Image(file, splits.get(key, item.split), item.line)


def _read_list(
    item: _Listed, files: SourceFiles, source: YoloSource, names: Mapping[int, str]
) -> Iterator[_Image]:
    """A path starts at the folder of the list, or else it is one of another machine."""
    text = files.read_text(item.key, f"data, {item.line},")
    lines = list(map(_divide_line, text.splitlines()))
    has_boxes = any(boxes for _, boxes in lines)
    for number, (path, boxes) in enumerate(lines, start=1):
        if path:
            with files.entry(f"{item.key}:{number}") as entry:
                if has_boxes and not parsing.is_image_name(path):
                    detail = f"{path:.80} must be an image, then x1,y1,x2,y2,class"
                    raise Reject("malformed", detail)
                near = files.get(files.to_key(path, posixpath.dirname(item.key)))
                file = near or files.find_image_anywhere(path, posixpath.dirname(source.data))
                entry.key = file.key if has_boxes else None
                found = [_parse_pixels(box, names) for box in boxes] if has_boxes else None
                yield _Image(file, item.split, entry.where, found)


def _divide_line(line: str) -> tuple[str, list[str]]:
    """The path in a line of a list, which may have blanks, and the boxes behind it."""
    words = re.split(r"(\s+)", line.strip())
    end = len(words)
    while end > 1 and _FIVE_NUMBERS.fullmatch(words[end - 1]):
        end -= 2
    return "".join(words[:end]), words[end + 1 :: 2]


def _is_listed_image(line: str) -> bool:
    return parsing.is_image_name(_divide_line(line)[0])


def _decode(content: bytes) -> str:
    return parsing.decode_text(content, "replace").lstrip()


def _find_list_keys(
    keys: Iterable[str], name: str, read: Callable[[str], bytes]
) -> dict[str, str | None]:
    """The splits by the keys of text files whose first line names an image.

    If the names of some tell their splits, the others are lists of the same images.
    """
    stems = {posixpath.splitext(key)[0] for key in keys if parsing.is_image_name(key)}
    found = {}
    for key in keys:
        folder, end = posixpath.split(key)
        stem, suffix = posixpath.splitext(key)
        is_near = folder in ("", posixpath.dirname(name))
        is_text = is_near and suffix == ".txt" and stem not in stems
        if is_text and _is_listed_image(_decode(read(key)).partition("\n")[0]):
            found[key] = parsing.find_split(end)
    return {key: split for key, split in found.items() if split} or found


def _find_label_key(key: str, files: SourceFiles) -> str:
    """The key of an image's label file: in a folder `labels`, or else beside the image."""
    usual, beside = (f"{posixpath.splitext(path)[0]}.txt" for path in (_to_labels(key), key))
    is_there = [path in files.by_key or path in files.unreadable for path in (usual, beside)]
    return beside if is_there == [False, True] else usual


def _match_other_names(
    files: SourceFiles, by_label: Collection[str], names: Mapping[int, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Looks for label files that no image has, where images have no label file.

    Returns the label files whose names differ from the right ones in case only, by the right names,
    and one of the rest for each folder. There, an image without a label file may be no background.
    """
    missing = {key for key in by_label if key not in files.by_key and key not in files.unreadable}
    folders = set(map(posixpath.dirname, missing))
    texts = [key for key in files.by_key if key.lower().endswith(".txt")]
    spare = [key for key in texts if posixpath.dirname(key) in folders and key not in by_label]
    if spare:
        images = [key for key in files.by_key if not key.lower().endswith(".txt")]
        owned = {_find_label_key(key, files) for key in images}
        spare = [key for key in spare if key not in owned and not key.endswith("classes.txt")]
    pairs, lost = match_without_case(missing, spare), {}
    for key in sorted({*spare} - {*pairs.values()}):
        # Beside images, lists and notes may lie, too.
        if (folder := posixpath.dirname(key)) not in lost and _has_boxes(files, key, names):
            lost[folder] = key
    return pairs, lost


def _has_boxes(files: SourceFiles, key: str, names: Mapping[int, str]) -> bool:
    if "/labels/" in f"/{key}":
        return True
    with contextlib.suppress(Reject):
        return bool(_parse_labels(read_raw(files.by_key[key], files.listing.folder), names))
    return False


def _to_labels(path: str) -> str:
    """The path with `labels` instead of its last folder `images`, if it has one."""
    return re.sub("^(.*/)(images|JPEGImages)/", r"\1labels/", f"/{path}", flags=re.DOTALL)[1:]


def _reject_unused_labels(
    prefixes: tuple[str, ...], files: SourceFiles, used: Collection[str]
) -> None:
    """Rejects label files without an image, unless they may be for images that no list names."""
    for key in files.by_key:
        is_label = key.startswith(prefixes) and key.lower().endswith(".txt") and key not in used
        if is_label and not _CLASS_FILE.fullmatch(key):  # some tools write it there
            with files.entry(key, key):
                raise Reject("missing_image", "there is no image of this name")


def _read_description(files: SourceFiles, name: str) -> _Description:
    text = files.read_text(name, "data", MAX_DESCRIPTION_BYTES)
    if _CLASS_FILE.fullmatch(name):
        return _parse_class_file(name, text)
    if name.endswith(".data"):
        values, lines = dict[str, Any](), dict[Location, int]()
        for number, line in enumerate(text.splitlines(), start=1):
            theirs, _, value = line.partition("=")
            if key := _DARKNET_KEYS.get(theirs.strip()):
                values[key], lines[key,] = value.strip(), number
        return _Description(name, values, lines)
    try:
        reject_nesting(text)
        values, lines = read_yaml(text)
    except YamlProblem as problem:
        raise DataError(f"{name}:{problem.line}: {problem.rule}") from None
    if not isinstance(values, dict):
        raise DataError(f"{name}:1: must be a mapping with the keys train, val and names.")
    description = _Description(name, values, lines)
    if "kpt_shape" in values:
        cure = "Remove the key, and the columns of the key points from the label files."
        raise description.make_error(f"key points are not supported. {cure}", "kpt_shape")
    return description


def _parse_class_file(name: str, text: str) -> _Description:
    """A description with the classes alone, one a line."""
    names = [line.strip() for line in text.rstrip().splitlines()]
    lines: dict[Location, int] = {("names", n): n + 1 for n in range(len(names))}
    return _Description(name, {"names": names}, lines)


def _find_listed_paths(description: _Description, files: SourceFiles) -> list[_Listed]:
    values = description.values
    if not values.get("train"):
        raise description.make_error("the key train is missing. Add the folder of the images.")
    if not isinstance(path := values.get("path") or "", str):
        raise description.make_error("must be text.", "path")
    slashes = ((key, slash) for key in files.by_key for slash in re.finditer("/", key))
    folders = {".", *(key[: slash.start()] for key, slash in slashes)}
    listed: dict[str, _Listed] = {}
    for key, split in _SPLITS.items():
        entries = values.get(key) or []
        for index, entry in enumerate(entries if isinstance(entries, list) else [entries]):
            location = (key, index) if isinstance(entries, list) else (key,)
            if not isinstance(entry, str):
                raise description.make_error("must be text, or a list of texts.", *location)
            candidates = list(_iterate_candidates(description, path, entry, files))
            found = next((c for c in candidates if c in folders or c in files.by_key), None)
            if found is None:
                tried = ", ".join(candidate[:200] for candidate in candidates[:3])
                tried += f" or {len(candidates) - 3} shorter paths" if len(candidates) > 3 else ""
                fault = f"there are no files in {files.listing.folder} under {tried}"
                cure = f"Correct the entry or path, or remove {key}."
                raise description.make_error(f"{fault}. {cure}", *location)
            if other := listed.get(found):
                fault = f"{found} is named in {other.line} already"
                cure = "and an image can be in one split only. Remove one of the entries."
                raise description.make_error(f"{fault}, {cure}", *location)
            listed[found] = _Listed(found, found in folders, split, description.locate(*location))
    return [*listed.values()]


def _iterate_candidates(
    description: _Description, path: str, entry: str, files: SourceFiles
) -> Iterator[str]:
    """The keys that an entry may mean, likely ones first. Roboflow writes `../` before."""
    folder = posixpath.dirname(description.name)
    try:
        if _ABSOLUTE.match(entry) or description.name.endswith(".data"):
            roots, entries = [""], list(parsing.iterate_path_ends(entry))
        else:
            entry = entry.replace("\\", "/")
            roots = [*parsing.iterate_path_ends(path), ""]
            entries = list(dict.fromkeys([entry, entry.removeprefix("../")]))
        for root, end in itertools.product(roots, entries):
            yield files.to_key(end, posixpath.join(folder, root))
        if description.name.endswith(".data"):  # whose paths start at Darknet's own folder
            yield from map(files.to_key, entries)
    except Reject as reject:
        raise DataError(f"{description.locate('path')}: {reject.detail}.") from None


def _parse_names(description: _Description, files: SourceFiles) -> Mapping[int, str]:
    """The classes by number. With `nc` alone they are class_0, class_1 and so on."""
    path = description.values.get("names")
    candidates = _iterate_candidates(description, "", path, files) if isinstance(path, str) else ()
    if key := next((key for key in candidates if key in files.by_key), None):
        where = f"data, {description.locate('names')},"
        description = _parse_class_file(key, files.read_text(key, where, MAX_DESCRIPTION_BYTES))
    names, count = description.values.get("names"), description.values.get("nc")
    if count is not None and not (type(count) is int and 1 <= count <= MAX_CLASSES):
        raise description.make_error("must be the number of classes, at least 1.", "nc")
    if names is None and count is not None:
        return {number: f"class_{number}" for number in range(count)}
    if not names or not isinstance(names, (list, dict)):
        kinds = "a list of the classes, a mapping from numbers to classes, or the path of a file"
        raise description.make_error(f"must be {kinds} with one class a line.", "names")
    if count is not None and count != len(names):
        raise description.make_error(f"is {count}, but there are {len(names)} names.", "nc")
    found: dict[str, int] = {}
    for number, name in names.items() if isinstance(names, dict) else enumerate(names):
        location = "names", number if isinstance(names, list) else str(number)
        if not str(number).isdecimal() or isinstance(name, bool) or not isinstance(name, str | int):
            fault = f"{str(number):.40}: {str(name):.40} is not a number with the name of a class"
            raise description.make_error(f"{fault}. Put the name in quotes.", *location)
        if found.setdefault(str(name).strip(), int(number)) != int(number):
            problem = f"two classes have the name {str(name):.40}. Rename one of them."
            raise description.make_error(problem, *location)
    return {number: name for name, number in found.items()}


def _parse_labels(content: bytes, names: Mapping[int, str]) -> tuple[Box, ...]:
    parsing.check_size(len(content), MAX_SAMPLE_ANNOTATION_BYTES, "a label file")
    boxes = []
    text = parsing.parse_utf8(content, "the label file")
    for number, line in enumerate(text.splitlines(), start=1):
        if fields := line.split():
            try:
                boxes.append(_parse_object(fields, names))
            except Reject as reject:
                raise Reject(reject.reason, f"line {number}: {reject.detail}") from None
    return tuple(boxes)


def _parse_object(fields: list[str], names: Mapping[int, str]) -> Box:
    name, coordinates = _find_name(fields[0], names), [*map(parsing.parse_number, fields[1:])]
    if len(coordinates) == 5:
        detail = "six columns. The sixth is the confidence of a prediction (save_conf). Remove it"
        raise Reject("malformed", detail)
    if len(coordinates) < 4 or len(coordinates) % 2:
        detail = f"{len(fields)} columns. A box has five, a polygon seven, nine, eleven or more"
        raise Reject("malformed", detail)
    for text, value in zip(fields[1:], coordinates, strict=True):
        if not math.isfinite(value):
            raise Reject("box_not_finite", f"{text:.20} is not finite")
        if not -_TOLERANCE <= value <= 1 + _TOLERANCE:
            detail = f"{text:.20} is not between 0 and 1. Divide x by the width and y by the height"
            raise Reject("box_outside", detail)
    if len(coordinates) == 4:
        return parsing.make_box(to_corners(coordinates, "center_xywh"), name)
    points = list(zip(coordinates[::2], coordinates[1::2], strict=True))
    return parsing.make_box(parsing.enclose(points), name)


def _parse_pixels(text: str, names: Mapping[int, str]) -> Box:
    xmin, ymin, xmax, ymax, number = text.split(",")
    return parsing.make_box((ymin, xmin, ymax, xmax), _find_name(number, names))


def _find_name(text: str, names: Mapping[int, str]) -> str:
    number = parsing.parse_number(text)
    if not number.is_integer() or number not in names:
        raise Reject("unknown_class", f"{text:.20} is not the number of a class, 0 to {max(names)}")
    return names[int(number)]


_MAX_LABEL_FILES = 100
"""Number of label files that the recogniser reads."""
_MAX_SLIPS = 0.15
"""Share of boxes that may leave their images a little, as boxes in another format do."""
_MIN_POINTED = 5
"""The number of lines from which on it is no chance that all points lie in a first box."""
_YOLO_LINE = re.compile(r"\s*\d{1,6}(\.0*)?(\s+[-+.\deE]+){4,}\s*(\r?\n|$)")
_YAML_KEYS = (re.compile(rb"^names\s*:", re.MULTILINE), re.compile(rb"^(train|val)\s*:", re.M))
_DATA_KEYS = (re.compile(rb"^\s*names\s*=", re.M), re.compile(rb"^\s*train\s*=", re.M))


def recognise(view: FolderView) -> Iterator[SourceMatch | Question | str]:
    """Finds a `data.yaml`, a `.data` file of Darknet, or label files and a file of classes."""
    descriptions = [
        file
        for file, start in view.iterate_starts(".yaml", ".yml", ".data")
        for keys in [_DATA_KEYS if file.key.endswith(".data") else _YAML_KEYS]
        if all(key.search(start) for key in keys)
    ]
    stems = {posixpath.splitext(file.key)[0] for file in view.images}
    texts = [file for file in view.files if file.key.endswith(".txt")]
    texts = [
        file
        for file in texts
        if ("labels" in file.key.split("/")[:-1] or posixpath.splitext(file.key)[0] in stems)
        and not _CLASS_FILE.fullmatch(file.key)
    ]
    starts = [_decode(view.read_start(file)) for file in texts[:_MAX_LABEL_FILES]]
    if not any(map(_YOLO_LINE.match, starts)):
        texts = []  # they hold no boxes
    elif fault := _find_other_meaning(starts):
        yield f"{texts[0].key} and other label files: {fault}"
        return
    labels = Counter(posixpath.dirname(file.key) for file in texts)
    for file in descriptions:
        below, name = posixpath.split(file.key)
        around = f"{below}/" if below else ""
        number = sum(n for folder, n in labels.items() if f"{folder}/".startswith(around))
        if not number and name.endswith(".data"):  # it may be in a folder beside the images
            below, name, number = "", file.key, labels.total()
        reason = f"{file.key} names classes and splits; {count(number, 'label file')} below it"
        keys = unless("data", name, "data.yaml")
        yield SourceMatch("yolo", reason, keys, below, is_certain=number > 0)
    if not descriptions:
        yield from _recognise_class_file(view, labels, starts)


def _find_other_meaning(starts: Iterable[str]) -> str:
    """Says what the numbers in some label files are if they are no boxes or polygons of YOLO."""
    boxes, points = list[SizedBox](), list[bool]()
    for text in starts:
        for line in filter(_YOLO_LINE.fullmatch, text.splitlines()):
            x, y, width, height, *rest = map(float, line.split()[1:])
            if not rest:
                boxes.append(((x, y, width, height), FRACTIONS))
            elif len(rest) % 2 == 0:
                pairs = zip(rest[::2], rest[1::2], strict=True)
                is_inside = [2 * abs(a - x) <= width and 2 * abs(b - y) <= height for a, b in pairs]
                points.append(all(is_inside))
    if len(points) >= _MIN_POINTED and all(points):
        cure = "Remove the columns from the sixth on"
        return f"each line has a box, and then points in it, as key points are. {cure}"
    better = find_better(boxes, "center_xywh", _MAX_SLIPS)
    return f"{better[1]}. YOLO has center, width, height. Convert them" if better else ""


def _recognise_class_file(
    view: FolderView, labels: Counter[str], starts: Iterable[str]
) -> Iterator[SourceMatch | Question | str]:
    """Finds the file of classes of label files, or of lists with boxes. It has enough classes."""
    by_key = {file.key: file for file in view.files}
    rows = [row.group() for text in starts if (row := _YOLO_LINE.match(text))]
    most = max((int(float(row.split()[0])) for row in rows), default=0)
    found: dict[tuple[str, ...], str] = {}
    for file in view.list_candidates(".txt", ".names", ".labels"):
        if _CLASS_FILE.fullmatch(file.key):
            names = tuple(_decode(view.read_start(file)).rstrip().splitlines())
            if len(names) > most and not any(map(_is_listed_image, names)):
                found.setdefault(names, file.key)
    keys = [str(view.chosen["data"])] if "data" in view.chosen else [*found.values()]
    lists = _find_list_keys(by_key, keys[0] if keys else "", lambda k: view.read_start(by_key[k]))
    firsts = {key: _decode(view.read_start(by_key[key])).partition("\n")[0] for key in lists}
    boxed = [key for key, first in firsts.items() if _divide_line(first)[1]]
    what = f"the boxes in {join_names(boxed)}"
    if labels:
        folders = join_names(sorted(folder or "." for folder in labels))
        what = f"{count(labels.total(), 'label file')} of YOLO in {folders}"
    if not labels and not boxed:
        return
    if len(keys) == 1:
        yield SourceMatch("yolo", f"{keys[0]} names the classes of {what}", {"data": keys[0]})
    elif keys:
        reason = f"{join_names(keys)} name different classes for {what}"
        yield Question(reason, [{"data": key} for key in keys], "yolo")
    elif not view.named_file:
        cure = "Add a file classes.txt with one class a line, in the order of their numbers"
        yield f"{what}, but no file names the classes. {cure}"
