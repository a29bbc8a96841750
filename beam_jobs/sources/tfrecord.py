"""TFRecords of Trainyard, and of the TensorFlow Object Detection API's scripts.

A class is named by its text, by its number in the label map, or, in shards of ours, by its index in
`class_names` of the manifest.json next to them. The key of a record is the first of `_KEYS` that it
has, or its place, `<file>#<index>`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf import text_format

from beam_jobs.io.example import define_message, parse
from beam_jobs.io.tfrecord_files import scan_records
from beam_jobs.sources.folder_view import FolderView, SourceMatch
from beam_jobs.sources.packed import (
    PackedExample,
    find_containers,
    get_pattern,
    list_parts,
    read_examples,
)
from beam_jobs.sources.parsing import decode_text, parse_text, parse_utf8
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.sources.wording import count, get_task, join_names
from beam_jobs.stages.boxes import FRACTIONS, Size
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.sources import TfrecordSource
from pipeline_ops.contract import dataset as shards
from pipeline_ops.contract import manifest
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.limits import MAX_TEXT_CHARACTERS, check_limit

_KEYS = (shards.KEY, "image/filename", "image/source_id")
_TEXT, _BOX_TEXT = "image/class/text", "image/object/class/text"


class LabelMap(NamedTuple):
    """The names of the classes by number, and by each text that a record may have for a class.

    COCO's label map has `name: "/m/01g317" display_name: "person"`, and the records have either.
    """

    names: dict[int, str]
    aliases: dict[str, str]

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each class: the lowest of a name that several items have."""
        found = sorted(self.names.items(), reverse=True)
        return {parse_text(name): number for number, name in found}

    def without_background(self) -> LabelMap:
        """The classes of a detector: the API reserves the number 0 for `background`."""
        if self.names.get(0) != self.aliases.get("background", ""):
            return self
        return self._replace(names={n: name for n, name in self.names.items() if n})


def read_entries(files: SourceFiles, source: TfrecordSource) -> Iterator[SourceEntry]:
    names = _read_class_names(files, source)
    for container, split in find_containers(source, files.listing):
        make_entry = functools.partial(_make_entry, task=source.task, split=split, names=names)
        yield from read_examples(files, container, make_entry)


def _read_class_names(files: SourceFiles, source: TfrecordSource) -> LabelMap:
    if source.label_map is not None:
        found = parse_label_map(files.read(source.label_map, "label_map"), source.label_map)
        if source.task == "detection":
            found = found.without_background()
            files.class_numbers = found.numbers
        return found
    if manifest.NAME not in files:
        return LabelMap({}, {})
    try:
        content = json.loads(files.read(manifest.NAME))["figures"]
        figures = shards.DatasetFigures.model_validate(content)
    except (ValueError, KeyError, TypeError, RecursionError):
        return LabelMap({}, {})  # a manifest of another tool does not define the numbers
    files.class_numbers = dict(zip(figures.class_names, figures.class_numbers, strict=False))
    return LabelMap(dict(enumerate(figures.class_names)), {})


def _make_entry(
    example: PackedExample, task: str, split: str | None, names: LabelMap
) -> SourceEntry:
    image = example.make_image(shards.ENCODED, _read_key(example.features) or example.where)
    if task == "classification":
        [label] = _read_labels(example, _TEXT, shards.LABEL, 1, names)
        return SourceEntry(image, label, split=split)
    count = len(example.features.get(shards.BOX_YMIN, []))
    height, width = frame = _read_frame(example)
    edges = [example.read_values(name, count, float, int) for name in shards.BOX_EDGES]
    corners = (
        (ymin * height, xmin * width, ymax * height, xmax * width)
        for ymin, xmin, ymax, xmax in zip(*edges, strict=True)
    )
    labels = _read_labels(example, _BOX_TEXT, shards.BOX_LABEL, count, names)
    boxes = example.read_boxes(corners, labels, shards.BOX_IS_DIFFICULT, shards.BOX_IS_CROWD)
    return SourceEntry(image, boxes=boxes, split=split, frame=frame, drawn_on="stored")


def _read_key(features: Mapping[str, list[Any]]) -> str | None:
    for name in _KEYS:
        if (values := features.get(name)) and isinstance(values[0], bytes) and values[0]:
            return parse_utf8(values[0], f"the feature {name}")
    return None


def _read_frame(example: PackedExample) -> Size:
    """The size of the image that the boxes are given for, or FRACTIONS if the record has none."""
    if not example.features.get(shards.HEIGHT) or not example.features.get(shards.WIDTH):
        return FRACTIONS
    [height], [width] = (example.read_values(name, 1) for name in (shards.HEIGHT, shards.WIDTH))
    return (float(height), float(width)) if height > 0 and width > 0 else FRACTIONS


def _read_labels(
    example: PackedExample, text: str, number: str, count: int, classes: LabelMap
) -> Sequence[str]:
    if example.features.get(text):
        texts = example.read_values(text, count, bytes)
        found = [parse_utf8(value, f"the feature {text}") for value in texts]
        return [classes.aliases.get(label, label) for label in found]
    numbers = example.read_values(number, count)
    if unknown := [value for value in numbers if value not in classes.names]:
        where = f"not in {text}, and not in preprocess.source.label_map"
        raise Reject("unknown_class", f"the class {unknown[0]} has no name: {where}")
    return [classes.names[value] for value in numbers]


def parse_label_map(content: bytes, name: str) -> LabelMap:
    """Reads a label map in protobuf's text format. Other fields, such as keypoints, are ignored."""
    message = _LabelMap()
    try:
        text_format.Parse(decode_text(content), message, allow_unknown_field=True)
        items = [(item, item.display_name or item.name) for item in message.item]
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise DataError(f"{name}: not a label map in protobuf's text format: {error}") from None
    found = LabelMap({}, {})
    for item, label in items:
        if not item.HasField("id") or item.id < 0 or not label:
            fault = f"an item needs an id from 0 on and a name, got id {item.id} and name {label!r}"
            raise DataError(f"{name}: {fault}")
        for text in (label, item.name):
            check_limit(
                name,
                f"the item {item.id} has",
                len(text),
                MAX_TEXT_CHARACTERS,
                "characters in its name",
                "Shorten it.",
            )
        if other := found.names.get(item.id):
            fault = f"the classes {other!r} and {label!r} have the same id {item.id}"
            raise DataError(f"{name}: {fault}. Give each class its own id.")
        found.names[item.id] = label
        for alias in {label, item.name} - {""}:
            if (other := found.aliases.setdefault(alias, label)) != label:
                fault = f"{alias!r} names the classes {other!r} and {label!r}"
                raise DataError(f"{name}: {fault}. Give each class its own name.")
    if not items:
        cure = "Add items such as item { id: 1 name: 'cat' }."
        raise DataError(f"{name}: the label map has no items. {cure}")
    return found


_LabelMap = define_message(
    "trainyard.LabelMap",
    """
    name: "trainyard/label_map.proto" package: "trainyard" syntax: "proto2"
    message_type {
      name: "Item"
      field { name: "name" number: 1 type: TYPE_STRING }
      field { name: "id" number: 2 type: TYPE_INT32 }
      field { name: "display_name" number: 3 type: TYPE_STRING }
    }
    message_type {
      name: "LabelMap"
      field { name: "item" number: 1 label: LABEL_REPEATED type_name: ".trainyard.Item" }
    }
    """,
)
"""The message StringIntLabelMap of object_detection/protos/string_int_label_map.proto."""


_TFRECORD_NAME = re.compile(r"\.(tfrecords?|tfrec|record)(-\d+-of-\d+)?$|-\d+-of-\d+$")


def recognise(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds TFRecord files with images. The first record of the first file is parsed."""
    others = (shards.QUARANTINE_PREFIX, f"{shards.RAW_TEST_PREFIX}test-")
    named = [file for file in view.list_candidates("") if _TFRECORD_NAME.search(file.key)]
    files = [file for file in named if not posixpath.basename(file.key).startswith(others)]
    if not files:
        return
    features, problem = dict[str, Any](), "its first record has other features"
    with view.open(files[0]) as opened:
        empty = Reject("truncated", "it has no records")
        _, record = next(scan_records(opened, files[0].num_bytes), (0, empty))
    try:
        if isinstance(record, Reject):
            problem = record.detail
        else:
            features = parse(record)
    except ValueError as error:
        problem = str(error)
    has_boxes = shards.BOX_XMIN in features
    has_label = shards.LABEL in features or _TEXT in features
    if shards.ENCODED not in features or not (has_boxes or has_label):
        reason = f"{files[0].key}: {problem}"
        if any(posixpath.basename(file.key) == "dataset_info.json" for file in view.files):
            reason += ". TensorFlow Datasets made it: use `type: tfds` (docs/data-sources.md)"
        yield reason
        return
    keys = get_task(has_boxes)
    if maps := view.list_candidates(".pbtxt"):
        keys["label_map"] = maps[0].key
    patterns = list(dict.fromkeys(map(get_pattern, files)))
    keys |= list_parts(files) or {"parts": [{"files": pattern} for pattern in patterns]}
    reason = (
        f"{count(len(files), 'TFRecord file')} ({join_names(patterns)}) whose first record "
        f"has an image and {'boxes' if has_boxes else 'a label'}"
    )
    yield SourceMatch("tfrecord", reason, keys)


def find_class_order(view: FolderView, labels: Collection[str]) -> list[str]:
    """The classes in the order of a label map that names all of them. Empty if there is none."""
    for file, start in view.iterate_starts(".pbtxt"):
        with contextlib.suppress(DataError):  # of something else
            names = parse_label_map(start, file.key).names
            order = [names[number] for number in sorted(names) if names[number] in labels]
            if len(order) == len(labels):
                return order
    return []
