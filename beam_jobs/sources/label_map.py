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

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from pipeline_ops.errors import DataError

_Field = descriptor_pb2.FieldDescriptorProto


def parse_label_map(content: bytes, name: str) -> dict[int, str]:
    """Class names by number. The `display_name` of an item is used if it has no name.

    Raises:
      DataError: it is no label map, or an item has no number, no name, or the number of another
        item.
    """
    message = _LabelMap()
    try:
        text_format.Parse(content.decode("utf-8-sig"), message, allow_unknown_field=True)
        items = [(item.id, item.name or item.display_name) for item in message.item]
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise DataError(f"{name}: not a label map in protobuf's text format: {error}") from None
    names: dict[int, str] = {}
    for item, (number, label) in zip(message.item, items, strict=True):
        if not item.HasField("id") or not label:
            raise DataError(
                f"{name}: an item needs an id and a name, got id {number} and name {label!r}"
            )
        if number in names:
            raise DataError(
                f"{name}: the id {number} stands for both {names[number]!r} and {label!r}; "
                "give each class its own"
            )
        names[number] = label
    if not names:
        raise DataError(
            f"{name}: a label map without items: it must be like item {{ id: 1 name: 'cat' }}"
        )
    return names


def _make_label_map() -> type:
    """The class of the message StringIntLabelMap.

    The field numbers are those of object_detection/protos/string_int_label_map.proto.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name="trainyard/label_map.proto", package="trainyard", syntax="proto2"
    )
    item = file.message_type.add(name="Item")
    for number, (name, kind) in enumerate(
        (
            ("name", _Field.TYPE_STRING),
            ("id", _Field.TYPE_INT32),
            ("display_name", _Field.TYPE_STRING),
        ),
        start=1,
    ):
        item.field.add(name=name, number=number, type=kind, label=_Field.LABEL_OPTIONAL)
    file.message_type.add(name="LabelMap").field.add(
        name="item",
        number=1,
        type=_Field.TYPE_MESSAGE,
        type_name=".trainyard.Item",
        label=_Field.LABEL_REPEATED,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("trainyard.LabelMap"))


_LabelMap = _make_label_map()
