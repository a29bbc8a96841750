"""Annotations in named fields: a row of a Parquet file, or the JSON of a sample of WebDataset.

A field is `label`, or `objects.bbox` for the field `bbox` in `objects`, which may be one object
with lists or a list of objects. This module knows no file format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from beam_jobs.io.raw import Raw
from beam_jobs.planning.plan import Record
from beam_jobs.sources.parsing import (
    escape_surrogates,
    make_box,
    parse_box_object,
    parse_number,
    parse_split,
    parse_text,
)
from beam_jobs.stages.boxes import FRACTIONS
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.packed_sources import FieldsSource


def make_record(
    image: Raw,
    fields: Mapping[str, Any],
    source: FieldsSource,
    split: str | None,
    names: Sequence[str] | None,
) -> Record:
    """The record of an image.

    Args:
      image: the image.
      fields: its annotation.
      source: the names of the fields.
      split: the split of the file, which a split in the fields replaces.
      names: the names of the classes that are given as numbers.

    Raises:
      Reject: no_label, no_annotation, malformed, unknown_class or unknown_split.
    """
    group = find_field(fields, source.group) if source.group else None
    own_split = parse_split(find_field(fields, source.split)) if source.split else None
    is_detection = source.task == "detection"
    return Record(
        image,
        label="" if is_detection else parse_class(find_field(fields, source.label), names),
        boxes=_read_boxes(fields, source, names) if is_detection else None,
        split=own_split or split,
        group=None if group in (None, "") else escape_surrogates(str(group)),
        frame=FRACTIONS if is_detection and source.units == "fractions" else None,
    )


def find_field(fields: Any, name: str) -> Any:
    """The value of a field, or None if it is missing."""
    if isinstance(fields, Mapping) and name in fields:
        return fields[name]
    first, _, rest = name.partition(".")
    if isinstance(fields, list):
        return [find_field(item, name) for item in fields]
    value = fields.get(first) if isinstance(fields, Mapping) else None
    return find_field(value, rest) if rest else value


def parse_class(value: Any, names: Sequence[str] | None) -> str:
    """The name of a class. Raises Reject: no_label, unknown_class, malformed.

    A number is an index into `names`. Names that are numbers themselves are compared instead: the
    classes 0 to 10 of another run, sorted as text, are not in the order of their indices.
    """
    if value is None or value == "" or value == -1:  # -1 is the missing label of Hugging Face
        raise Reject("no_label", f"the label is {value!r}")
    if type(value) is not int:
        return parse_text(value)
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
        boxes = _to_list(find_field(fields, source.boxes), source.boxes)
        if boxes and isinstance(boxes[0], Mapping):
            return tuple(_parse_box_object(box, names) for box in boxes)
    labels = _to_list(find_field(fields, source.label), source.label) if boxes else []
    if len(labels) != len(boxes):
        raise Reject("malformed", f"{len(boxes)} boxes have {len(labels)} values of {source.label}")
    return tuple(
        make_box(_to_corners(box, source.box_format), parse_class(label, names))
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
    return parse_box_object(box)


def _to_corners(box: Any, box_format: str) -> Sequence[float]:
    """ymin, xmin, ymax and xmax of a box of four numbers."""
    if not isinstance(box, Sequence) or len(box) != 4:
        raise Reject("malformed", f"a box must have four numbers, got {box!r:.80}")
    a, b, c, d = map(parse_number, box)
    match box_format:
        case "yxyx":
            return a, b, c, d
        case "xywh":
            return b, a, b + d, a + c
        case "center_xywh":
            return b - d / 2, a - c / 2, b + d / 2, a + c / 2
        case _:
            return b, a, d, c
