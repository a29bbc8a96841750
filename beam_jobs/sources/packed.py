"""Images inside other files: the sources `tfrecord`, `tfds`, `webdataset` and `parquet` use this.

The driver reads each file once, from beginning to end, and keeps the place, the size and the digest
of every image. Annotations are the features of a tf.train.Example, or named fields: a row of a
Parquet file, or the JSON of a sample of WebDataset.
"""

from __future__ import annotations

import dataclasses
import glob
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import beam_jobs.sources.parsing as parsing
from beam_jobs.io.example import parse
from beam_jobs.io.raw import PackedImage, Raw, open_raw, translate_read_errors
from beam_jobs.io.tfrecord_files import scan_records
from beam_jobs.sources.box_formats import to_corners
from beam_jobs.sources.columns import Meaning, find_field
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.stages.boxes import FRACTIONS
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import FieldsSource, PackedSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile, compute_digest


def find_containers(source: PackedSource, listing: Listing) -> list[tuple[RawFile, str | None]]:
    """Each file of the parts once, with its split."""
    found: dict[str, tuple[RawFile, str | None]] = {}
    for index, part in enumerate(source.parts):
        files = [file for file in listing.files if fnmatchcase(file.key, part.files)]
        cure = f"Correct preprocess.source.parts.{index}.files"
        if not files:
            refused = (file for file in listing.rejected if fnmatchcase(file.key, part.files))
            if file := next(refused, None):
                raise DataError(f"{listing.folder / file.key}: {file.detail}")
            raise DataError(f"{listing.folder}: no file matches {part.files}. {cure}.")
        if twice := [file.key for file in files if file.key in found]:
            fault = f"{twice[0]} belongs to two parts"
            raise DataError(f"{listing.folder}: {fault}. {cure}, now {part.files}.")
        found |= {file.key: (file, part.split) for file in files}
    return [found[key] for key in sorted(found)]


@dataclasses.dataclass(frozen=True)
class PackedExample:
    """A tf.train.Example in a TFRecord file. Its bytes `content` begin at the byte `start`."""

    container: RawFile
    where: str
    content: bytes
    start: int
    features: Mapping[str, list[Any]]

    def make_image(self, feature: str, key: str) -> PackedImage:
        values = self.features.get(feature, [])
        if len(values) != 1 or not isinstance(values[0], bytes):
            detail = f"the feature {feature} must hold one image, got {len(values)} values"
            raise Reject("no_image", detail)
        [image] = values
        offset = self.start + self.content.find(image)  # or equal bytes before it
        return PackedImage(key, len(image), compute_digest(image), self.container, offset)

    def read_boxes(
        self, corners: Iterable[Iterable[float]], labels: Sequence[str], difficult: str, crowd: str
    ) -> tuple[Box, ...]:
        """The boxes of corners (ymin, xmin, ymax, xmax). The features of flags may be missing."""
        flags = (
            self.read_values(name, len(labels)) if self.features.get(name) else [0] * len(labels)
            for name in (difficult, crowd)
        )
        return tuple(parsing.make_box(*box) for box in zip(corners, labels, *flags, strict=True))

    def read_values(self, name: str, count: int, *kinds: type) -> list[Any]:
        """The values of a feature, which are integers unless other kinds are given."""
        values = self.features.get(name, [])
        if len(values) != count or not all(isinstance(value, kinds or int) for value in values):
            noun = "texts" if bytes in kinds else "numbers"
            detail = f"the feature {name} must hold {count} {noun}, got {len(values)} values"
            raise Reject("malformed", detail)
        return values


def read_examples(
    files: SourceFiles, container: RawFile, make_entry: Callable[[PackedExample], SourceEntry]
) -> Iterator[SourceEntry]:
    """The entries of a TFRecord file. `make_entry` may raise Reject."""
    with translate_read_errors(container.key), open_raw(container, files.listing.folder) as file:
        for index, (start, content) in enumerate(scan_records(file, container.num_bytes)):
            where = f"{container.key}#{index:06d}"
            with files.entry(where, key=where, scope=container.key):
                if isinstance(content, Reject):
                    raise content
                try:
                    features = parse(content)
                except ValueError as error:
                    raise Reject("malformed", str(error)) from None
                yield make_entry(PackedExample(container, where, content, start, features))


def make_entry(
    image: Raw,
    fields: Mapping[str, Any],
    source: FieldsSource,
    split: str | None,
    names: Sequence[str] | None,
) -> SourceEntry:
    """The entry of an image whose annotation are `fields`.

    A split in the fields replaces `split`, that of the file. `names` are those of the classes that
    are given as numbers.
    """
    group = find_field(fields, source.group) if source.group else None
    own_split = parsing.parse_split(find_field(fields, source.split)) if source.split else None
    is_detection = source.task == "detection"
    return SourceEntry(
        image,
        None if is_detection else parse_class(find_field(fields, source.label), names),
        _read_boxes(fields, source, names) if is_detection else None,
        own_split or split,
        None if group is None else str(group),
        FRACTIONS if is_detection and source.units == "fractions" else None,
    )


def parse_class(value: Any, names: Sequence[str] | None) -> str:
    """The name of a class.

    A number is an index into `names`. Names that are numbers themselves are compared instead: the
    classes 0 to 10 of another run, sorted as text, are not in the order of their indices.
    """
    if value is None or value == "" or value == -1:  # -1 is the missing label of Hugging Face
        raise Reject("no_label", f"the label is {value!r}")
    if type(value) is not int:
        return parsing.parse_text(value)
    if not names or all(name.isdecimal() for name in names):
        return str(value)
    if not 0 <= value < len(names):
        raise Reject("unknown_class", f"{value} is not an index of {len(names)} class names")
    return names[value]


def _read_boxes(
    fields: Mapping[str, Any], source: FieldsSource, names: Sequence[str] | None
) -> tuple[Box, ...]:
    if source.corners:
        columns = [_to_list(find_field(fields, name), name) for name in source.corners]
        if len({len(column) for column in columns}) > 1:
            raise Reject("malformed", f"{', '.join(source.corners)} have different lengths")
        boxes: list[Any] = list(zip(*columns, strict=True))
    else:
        boxes = _to_list(find_field(fields, source.boxes.field), source.boxes.field)
        if boxes and isinstance(boxes[0], Mapping):
            return tuple(_parse_box_object(box, names) for box in boxes)
    labels = _to_list(find_field(fields, source.label), source.label) if boxes else []
    if len(labels) != len(boxes):
        raise Reject("malformed", f"{len(boxes)} boxes have {len(labels)} values of {source.label}")
    return tuple(
        parsing.make_box(to_corners(box, source.box_format), parse_class(label, names))
        for box, label in zip(boxes, labels, strict=True)
    )


def _to_list(value: Any, name: str) -> list[Any]:
    """The values of the boxes of an image. A single value is that of a single box."""
    if value is None:
        raise Reject("no_annotation", f"the field {name} is missing or null")
    return value if isinstance(value, list) else [value]


def _parse_box_object(box: Any, names: Sequence[str] | None) -> Box:
    if isinstance(box, Mapping) and "label" in box:
        box = {**box, "label": parse_class(box["label"], names)}
    return parsing.parse_box(box)


def list_parts(files: Iterable[RawFile]) -> dict[str, Any]:
    """The key `parts` if the names of the files tell their splits, and otherwise no key."""
    patterns = dict.fromkeys(map(get_pattern, files))
    parts = [parsing.name_part("files", pattern) for pattern in patterns]
    return {"parts": parts} if any("split" in part for part in parts) else {}


def get_pattern(file: RawFile) -> str:
    """The pattern of a file and of the other shards of its set."""
    shard = r"(?<=-)\d+(?=-of-\d)"
    return re.sub(shard, lambda number: "?" * len(number[0]), glob.escape(file.key), count=1)


def make_keys(meaning: Meaning) -> dict[str, Any]:
    """The keys of a `FieldsSource` for what the columns of its files are."""
    keys = meaning.make_keys("task", "corners", "label", "boxes", "box_format", "units")
    return keys | {k: v for k, v in meaning.others.items() if k in ("split", "group")}
