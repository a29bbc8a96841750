"""Reads the TensorFlow Object Detection API's label map, which names the numbers of classes.

It is a `.pbtxt` file:

    item {
      id: 1
      name: 'cat'
    }

The message is declared here with the fields that are needed. Other fields, such as keypoints, are
ignored.
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf import text_format

from beam_jobs.io.example import define_message
from pipeline_ops.errors import DataError


class LabelMap(NamedTuple):
    """The classes of a label map.

    Attributes:
      names: the name of each class by its number: its `display_name`, or else its `name`.
      aliases: these names by each text that a record may have for the class. COCO's label map has
        `name: "/m/01g317" display_name: "person"`, and the records have either.
    """

    names: dict[int, str]
    aliases: dict[str, str]


def parse_label_map(content: bytes, name: str) -> LabelMap:
    """Reads a label map.

    Raises:
      DataError: it is no label map, or an item has no number, no name, or the number of another
        item.
    """
    message = _LabelMap()
    try:
        text_format.Parse(content.decode("utf-8-sig"), message, allow_unknown_field=True)
        items = [(item, item.display_name or item.name) for item in message.item]
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise DataError(f"{name}: not a label map in protobuf's text format: {error}") from None
    names: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for item, label in items:
        if not item.HasField("id") or not label:
            raise DataError(
                f"{name}: an item needs an id and a name, got id {item.id} and name {label!r}"
            )
        if item.id in names:
            raise DataError(
                f"{name}: the classes {names[item.id]!r} and {label!r} have the same id {item.id}. "
                "Give each class its own id."
            )
        names[item.id] = label
        for alias in {label, item.name} - {""}:
            if aliases.setdefault(alias, label) != label:
                raise DataError(
                    f"{name}: {alias!r} names the classes {aliases[alias]!r} and {label!r}. "
                    "Give each class its own name."
                )
    if not names:
        raise DataError(
            f"{name}: the label map has no items. Add items such as item {{ id: 1 name: 'cat' }}."
        )
    return LabelMap(names, aliases)


_LabelMap = define_message(
    "trainyard.LabelMap",
    """
    name: "trainyard/label_map.proto" package: "trainyard" syntax: "proto2"
    message_type {
      name: "Item"
      field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
      field { name: "id" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }
      field { name: "display_name" number: 3 type: TYPE_STRING label: LABEL_OPTIONAL }
    }
    message_type {
      name: "LabelMap"
      field {
        name: "item" number: 1 label: LABEL_REPEATED
        type: TYPE_MESSAGE type_name: ".trainyard.Item"
      }
    }
    """,
)
"""The message StringIntLabelMap of object_detection/protos/string_int_label_map.proto."""
