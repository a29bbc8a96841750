"""Ultralytics YOLO: `data.yaml`, and a text file of boxes for each image.

A line is `class x y width height` with the centre of the box, or `class x1 y1 x2 y2 x3 y3 ...` for
a polygon. All numbers are fractions of the upright image.

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
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from beam_jobs.io.raw import RawReader, read_raw
from beam_jobs.sources.folder_view import (
    MAX_CANDIDATES,
    FolderView,
    SourceMatch,
    count,
    join_names,
    unless,
)
from beam_jobs.sources.parsing import (
    decode_text,
    enclose,
    iterate_path_ends,
    make_box,
    parse_number,
)
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.stages.boxes import FRACTIONS
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.reading import Location, YamlProblem, read_yaml, reject_nesting
from pipeline_ops.config.sources import YoloSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile, match_without_case

_SPLITS = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}
_MAX_BYTES = 4 << 20
_MAX_CLASSES = 100_000
_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:")
_MAX_LABEL_BYTES = 16 << 20
_TOLERANCE = 0.01
"""Maximum distance of a coordinate from the range 0 to 1. Ultralytics allows the same."""
_OTHER_SUFFIXES = (".txt", ".npy", ".cache")
"""Suffixes of files that YOLO keeps next to images. All other files there count as images."""


class _Image(NamedTuple):
    file: RawFile
    split: str
    place: str


class _Place(NamedTuple):
    """A folder of images, or a list of their paths, named in a line such as `data.yaml:3`."""

    key: str
    is_folder: bool
    split: str
    line: str

    @property
    def prefix(self) -> str:
        return "" if self.key == "." else f"{self.key}/"


class _Description(NamedTuple):
    """The values of `data.yaml` and the line of each, for messages."""

    name: str
    values: Mapping[str, Any]
    lines: Mapping[Location, int]

    def find_line(self, *location: str | int) -> int:
        return self.lines.get(location) or self.lines.get(location[:1], 1)

    def make_error(self, message: str, *location: str | int) -> DataError:
        return DataError(f"{self.name}:{self.find_line(*location)}: {message}")


def read_entries(files: SourceFiles, source: YoloSource) -> Iterator[SourceEntry]:
    description = _read_description(files, source.data)
    places, names = _find_places(description, files), _parse_names(description)
    by_label: dict[str, list[_Image]] = defaultdict(list)
    for place in places:
        read_place = _list_images if place.is_folder else _read_list
        for image in read_place(place, files, source):
            by_label[_make_label_key(image.file.key)].append(image)
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
            with files.entry(images[0].place, keys[0]) as entry:
                if (folder := posixpath.dirname(key)) in lost and key not in labels:
                    detail = f"there is no label file {key}, and {lost[folder]} has no image"
                    raise Reject("no_annotation", f"{detail}. Give both the same name")
                label_file = files.get(others.get(key, key))
                boxes = _parse_labels(reader.read(label_file), names) if label_file else ()
                num_empty += label_file is not None and not boxes
                for file, split, entry.place in images:
                    yield SourceEntry(
                        file, boxes=boxes, split=split, frame=FRACTIONS, drawn_on="upright"
                    )
    _reject_unused_labels(places, files, {*by_label, *others.values()})
    if labels and num_empty == len(labels):
        raise DataError(
            f"{files.listing.folder}: a detector needs boxes, found none: {num_empty} label files "
            "are there, and all of them are empty. Export the annotations again."
        )


def _list_images(place: _Place, files: SourceFiles, _: YoloSource) -> Iterator[_Image]:
    for key in itertools.chain(files.by_key, files.unreadable):
        if key.startswith(place.prefix) and not key.lower().endswith(_OTHER_SUFFIXES):
            with files.entry(key, key):
                if file := files.get(key):
                    yield _Image(file, place.split, place.line)


def _read_list(place: _Place, files: SourceFiles, source: YoloSource) -> Iterator[_Image]:
    """A path starts at the folder of the list, or else it is one of another machine."""
    text = files.read_text(place.key, f"data, {place.line},")
    for number, line in enumerate(text.splitlines(), start=1):
        if path := line.strip():
            with files.entry(f"{place.key}:{number}") as entry:
                near = files.get(files.to_key(path, posixpath.dirname(place.key)))
                folder = posixpath.dirname(source.data)
                file = near or files.find_image_from_elsewhere(path, folder)
                yield _Image(file, place.split, entry.place)


def _make_label_key(image: str) -> str:
    return posixpath.splitext(_to_labels(image))[0] + ".txt"


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
        owned = {_make_label_key(key) for key in files.by_key if not key.lower().endswith(".txt")}
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
    before, separator, after = f"/{path}".rpartition("/images/")
    return f"{before}/labels/{after}"[1:] if separator else path


def _reject_unused_labels(
    places: Collection[_Place], files: SourceFiles, used: Collection[str]
) -> None:
    """Rejects label files without an image, unless they may be for images that no list names."""
    prefixes = tuple(
        _to_labels(place.prefix)
        for place in places
        if place.is_folder and _to_labels(place.prefix) != place.prefix
    )
    for file in files.listing.files:
        if (
            file.key.startswith(prefixes)
            and file.key.lower().endswith(".txt")
            and file.key not in used
            and posixpath.basename(file.key) != "classes.txt"  # some tools write it
        ):
            with files.entry(file.key, file.key):
                raise Reject("missing_image", "there is no image of this name")


def _read_description(files: SourceFiles, name: str) -> _Description:
    text = files.read_text(name, "data", _MAX_BYTES)
    try:
        reject_nesting(text)
        values, lines = read_yaml(text)
    except YamlProblem as problem:
        raise DataError(f"{name}:{problem.line}: {problem.rule}") from None
    if not isinstance(values, dict):
        raise DataError(f"{name}:1: must be a mapping with the keys train, val and names.")
    description = _Description(name, values, lines)
    if "kpt_shape" in values:
        raise description.make_error(
            "kpt_shape: key points are not supported. Remove the key, and the columns of the key "
            "points from the label files.",
            "kpt_shape",
        )
    return description


def _find_places(description: _Description, files: SourceFiles) -> tuple[_Place, ...]:
    values = description.values
    if not values.get("train"):
        raise description.make_error("the key train is missing. Add the folder of the images.")
    if not isinstance(path := values.get("path") or "", str):
        raise description.make_error("path: must be text.", "path")
    folders = _collect_folders(files.listing)
    places: dict[str, _Place] = {}
    for key, split in _SPLITS.items():
        entries = values.get(key) or []
        for index, entry in enumerate(entries if isinstance(entries, list) else [entries]):
            location = (key, index) if isinstance(entries, list) else (key,)
            if not isinstance(entry, str):
                raise description.make_error(f"{key}: must be text, or a list of texts.", *location)
            candidates = list(_iterate_candidates(description, path, entry, files))
            found = next((c for c in candidates if c in folders or c in files.by_key), None)
            if found is None:
                tried = ", ".join(candidate[:200] for candidate in candidates[:3])
                tried += f" or {len(candidates) - 3} shorter paths" if len(candidates) > 3 else ""
                raise description.make_error(
                    f"{key}: there are no files in {files.listing.folder} under {tried}. "
                    f"Correct the entry or path, or remove {key}.",
                    *location,
                )
            if other := places.get(found):
                raise description.make_error(
                    f"{key}: {found} is named in {other.line} already, and an image can be in "
                    "one split only. Remove one of the entries.",
                    *location,
                )
            line = f"{description.name}:{description.find_line(*location)}"
            places[found] = _Place(found, found in folders, split, line)
    return tuple(places.values())


def _iterate_candidates(
    description: _Description, path: str, entry: str, files: SourceFiles
) -> Iterator[str]:
    """The keys that an entry may mean, likely ones first. Roboflow writes `../` before."""
    folder = posixpath.dirname(description.name)
    try:
        if _ABSOLUTE.match(entry):
            roots, entries = [""], list(iterate_path_ends(entry))
        else:
            entry = entry.replace("\\", "/")
            roots = [*iterate_path_ends(path), ""]
            entries = list(dict.fromkeys([entry, entry.removeprefix("../")]))
        for root, end in itertools.product(roots, entries):
            yield files.to_key(end, posixpath.join(folder, root))
    except Reject as reject:
        raise description.make_error(f"{reject.detail}.", "path") from None


def _collect_folders(listing: Listing) -> set[str]:
    folders = {"."}
    for file in listing.files:
        folder = posixpath.dirname(file.key)
        while folder and folder not in folders:
            folders.add(folder)
            folder = posixpath.dirname(folder)
    return folders


def _parse_names(description: _Description) -> Mapping[int, str]:
    """The classes by number. With `nc` alone they are class_0, class_1 and so on."""
    names, count = description.values.get("names"), description.values.get("nc")
    if count is not None and (
        not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MAX_CLASSES
    ):
        raise description.make_error("nc: must be the number of classes, at least 1.", "nc")
    if names is None and count is not None:
        return {number: f"class_{number}" for number in range(count)}
    if not names or not isinstance(names, (list, dict)):
        raise description.make_error(
            "names: must be a list of the classes, or a mapping from numbers to classes.", "names"
        )
    if count is not None and count != len(names):
        raise description.make_error(f"nc: is {count}, but there are {len(names)} names.", "nc")
    found: dict[str, int] = {}
    for number, name in names.items() if isinstance(names, dict) else enumerate(names):
        location = number if isinstance(names, list) else str(number)
        if not str(number).isdecimal() or isinstance(name, bool) or not isinstance(name, str | int):
            raise description.make_error(
                f"names: {str(number):.40}: {str(name):.40} is not a number with the name of a "
                "class. Put the name in quotes.",
                "names",
                location,
            )
        if found.setdefault(str(name).strip(), int(number)) != int(number):
            raise description.make_error(
                f"names: two classes have the name {str(name):.40}. Rename one of them.",
                "names",
                location,
            )
    return {number: name for name, number in found.items()}


def _parse_labels(content: bytes, names: Mapping[int, str]) -> tuple[Box, ...]:
    if len(content) > _MAX_LABEL_BYTES:
        raise Reject(
            "too_large", f"a label file of {len(content)} bytes, allowed are {_MAX_LABEL_BYTES}"
        )
    try:
        lines = decode_text(content).splitlines()
    except UnicodeDecodeError:
        raise Reject("malformed", "the label file is not UTF-8") from None
    boxes = []
    for number, line in enumerate(lines, start=1):
        if fields := line.split():
            try:
                boxes.append(_parse_object(fields, names))
            except Reject as reject:
                raise Reject(reject.reason, f"line {number}: {reject.detail}") from None
    return tuple(boxes)


def _parse_object(fields: list[str], names: Mapping[int, str]) -> Box:
    number, *coordinates = map(parse_number, fields)
    if not number.is_integer() or number not in names:
        raise Reject(
            "unknown_class", f"{fields[0]:.20} is not the number of a class, 0 to {max(names)}"
        )
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
    if len(coordinates) > 4:
        corners = enclose(list(zip(coordinates[::2], coordinates[1::2], strict=True)))
    else:
        x, y, width, height = coordinates
        corners = y - height / 2, x - width / 2, y + height / 2, x + width / 2
    return make_box(corners, names[int(number)])


_YOLO_LINE = re.compile(rb"\s*\d+(\s+[-+.\deE]+){4,}\s*(\r?\n|$)")

_YOLO_KEYS = (re.compile(rb"^names\s*:", re.MULTILINE), re.compile(rb"^(train|val)\s*:", re.M))


def recognise(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds a `data.yaml`, or folders `images` and `labels`."""
    descriptions = [
        file
        for file, start in view.iterate_starts(".yaml", ".yml")
        if all(key.search(start) for key in _YOLO_KEYS)
    ]
    texts = [
        file
        for file in view.files
        if file.key.endswith(".txt") and "labels" in file.key.split("/")[:-1]
    ]
    if not any(_YOLO_LINE.match(view.read_start(file)) for file in texts[:MAX_CANDIDATES]):
        texts = []  # they hold no boxes
    labels = Counter(posixpath.dirname(file.key) for file in texts)
    for file in descriptions:
        below, name = posixpath.split(file.key)
        around = f"{below}/" if below else ""
        number = sum(n for folder, n in labels.items() if f"{folder}/".startswith(around))
        reason = f"{file.key} names classes and splits; {count(number, 'label file')} below it"
        keys = unless("data", name, "data.yaml")
        yield SourceMatch("yolo", reason, keys, below, is_certain=number > 0)
    if not descriptions and labels and not view.named_file:
        yield (
            f"{count(labels.total(), 'label file')} of YOLO in {join_names(sorted(labels))}, "
            "but no data.yaml, which names the classes. Add a file data.yaml with names, train "
            "and val"
        )
