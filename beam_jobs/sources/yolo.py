"""Ultralytics YOLO: `data.yaml`, and a text file of boxes next to each image's folder.

    <source>/data.yaml                 train, val and test, and the names of the classes
    <source>/images/train/0001.jpg
    <source>/labels/train/0001.txt     one object per line, `class x y width height`

The last folder `images` in the path of an image becomes `labels` in the path of its label file. If
there is none, the two lie in one folder. An image without a label file is an example without boxes.
x and y are the centre of the box. All numbers are fractions of the upright image. A line
`class x1 y1 x2 y2 x3 y3 ...` is a polygon, as for segmentation and rotated boxes, and its box is
the smallest one around it.
"""

from __future__ import annotations

import math
import posixpath
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from beam_jobs.io.raw import RawReader
from beam_jobs.planning.plan import Record
from beam_jobs.sources.collect import Collector, ListedFiles, SourceRecords
from beam_jobs.sources.outlines import enclose
from beam_jobs.sources.parsing import make_box, parse_number
from beam_jobs.sources.yolo_data import SplitEntry, read_text, read_yolo_data
from beam_jobs.stages.boxes import UPRIGHT_FRACTIONS
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.labelling_sources import YoloSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile

_MAX_LABEL_BYTES = 16 << 20
_TOLERANCE = 0.01
"""Maximum distance of a coordinate from the range 0 to 1. Ultralytics allows the same."""
_OTHER_SUFFIXES = (".txt", ".npy", ".cache")
"""Suffixes of files that YOLO keeps next to images. All other files there count as images."""


class _Image(NamedTuple):
    """An image with its split, and its place in the source."""

    file: RawFile
    split: str
    location: str


def read_records(source: YoloSource, listing: Listing) -> SourceRecords:
    """Raises DataError: `data.yaml` cannot be used, or no image has a label file."""
    collector, files = Collector(source.class_names), ListedFiles(listing)
    data = read_yolo_data(source.data, listing, files)
    by_label: dict[str, list[_Image]] = defaultdict(list)
    for place in data.places:
        read_place = _list_images if place.is_folder else _read_list
        for image in read_place(place, listing, files, collector):
            by_label[_to_label_key(image.file.key)].append(image)
    labels = {key: file for key in by_label if (file := files.get(key))}
    if by_label and not labels:
        key, (image, *_) = next(iter(by_label.items()))
        raise DataError(
            f"{listing.folder}: none of the {len(by_label)} images has a label file. That of "
            f"{image.file.key} would be {key}. Put the label files there, or correct {source.data}."
        )
    reader = RawReader(labels.values(), listing.folder)
    for key, images in by_label.items():
        names = sorted({image.file.key for image in images})
        for name in names if len(names) > 1 else ():
            collector.reject(
                name, "ambiguous_image", f"{key} is the label file of each of {', '.join(names)}"
            )
        if len(names) == 1:
            with collector.catch_reject(names[0]):
                label_file = files.find(key)
                boxes = parse_labels(reader.read(label_file), data.names) if label_file else ()
                for file, split, location in images:
                    record = Record(file, boxes=boxes, split=split, frame=UPRIGHT_FRACTIONS)
                    collector.add(record, location)
    _reject_unused_labels(data.places, listing, by_label, collector)
    return collector.to_source_records()


def _list_images(
    place: SplitEntry, listing: Listing, files: ListedFiles, collector: Collector
) -> Iterator[_Image]:
    """The images in a folder and in the folders below it."""
    for file in listing.files:
        if file.key.startswith(place.prefix) and not file.key.endswith(_OTHER_SUFFIXES):
            yield _Image(file, place.split, place.location)
    for entry in listing.rejected:
        if entry.key.startswith(place.prefix) and not entry.key.endswith(_OTHER_SUFFIXES):
            collector.reject(entry.key, entry.reason, entry.detail)


def _read_list(
    place: SplitEntry, listing: Listing, files: ListedFiles, collector: Collector
) -> Iterator[_Image]:
    """The images that a file names, one path a line.

    A path starts at the folder of the list. If there is no such file, the path counts as one of
    another machine.
    """
    content = read_text(files.read(place.key, f"data, {place.location},"), place.key)
    for number, line in enumerate(content.splitlines(), start=1):
        location = f"{place.key}:{number}"
        if path := line.strip():
            with collector.catch_reject(location):
                near = files.find(files.to_key(posixpath.dirname(place.key), path))
                file = near or files.find_image_from_elsewhere(place.data_folder, path)
                yield _Image(file, place.split, location)


def _to_label_key(image_key: str) -> str:
    return posixpath.splitext(_to_labels(image_key))[0] + ".txt"


def _to_labels(path: str) -> str:
    """The path with `labels` instead of its last folder `images`, if it has one."""
    before, separator, after = f"/{path}".rpartition("/images/")
    return f"{before}/labels/{after}"[1:] if separator else path


def _reject_unused_labels(
    places: Collection[SplitEntry], listing: Listing, used: Collection[str], collector: Collector
) -> None:
    """Reports the label files without an image, unless they may be for images that no list names.

    `classes.txt` is a list of the classes that some tools write.
    """
    prefixes = tuple(
        _to_labels(place.prefix)
        for place in places
        if place.is_folder and _to_labels(place.prefix) != place.prefix
    )
    for file in listing.files:
        if (
            file.key.startswith(prefixes)
            and file.key.endswith(".txt")
            and file.key not in used
            and posixpath.basename(file.key) != "classes.txt"
        ):
            collector.reject(file.key, "missing_image", "there is no image of this name")


def parse_labels(content: bytes, names: Mapping[int, str]) -> tuple[Box, ...]:
    """The boxes of one label file, as fractions of the image. `names` are the classes by number.

    Raises Reject: too_large, malformed, unknown_class, box_not_finite, box_outside.
    """
    if len(content) > _MAX_LABEL_BYTES:
        raise Reject(
            "too_large", f"a label file of {len(content)} bytes, allowed are {_MAX_LABEL_BYTES}"
        )
    try:
        lines = content.decode("utf-8-sig").splitlines()
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
        raise Reject(
            "malformed",
            "six columns. The sixth is the confidence of a prediction (save_conf). Remove it",
        )
    if len(coordinates) < 4 or len(coordinates) % 2:
        raise Reject(
            "malformed",
            f"{len(fields)} columns. A box has five, a polygon seven, nine, eleven or more",
        )
    for text, value in zip(fields[1:], coordinates, strict=True):
        if not math.isfinite(value):
            raise Reject("box_not_finite", f"{text:.20} is not finite")
        if not -_TOLERANCE <= value <= 1 + _TOLERANCE:
            raise Reject(
                "box_outside",
                f"{text:.20} is not between 0 and 1. Divide x by the width and y by the height",
            )
    if len(coordinates) > 4:
        corners = enclose(list(zip(coordinates[::2], coordinates[1::2], strict=True)))
    else:
        x, y, width, height = coordinates
        corners = y - height / 2, x - width / 2, y + height / 2, x + width / 2
    return make_box(corners, names[int(number)])
