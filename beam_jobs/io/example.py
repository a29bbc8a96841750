"""Serialises and parses tf.train.Example without importing TensorFlow.

That import would cost every worker seconds. Map entries are written in the order of their keys, so
equal examples are equal bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from beam_jobs.stages.stage import Box, Example
from pipeline_ops.contract import dataset as shards

if TYPE_CHECKING:
    import numpy as np

_Features = Mapping[str, tuple[str, Sequence[Any]]]
"""Values by the name of a feature, with the field of its message that holds them."""
_PNG_OPTIONS = [16, 1]
"""cv2.IMWRITE_PNG_COMPRESSION. It is explicit, so that no new default of OpenCV changes bytes."""


def serialise(example: Example, labels: Mapping[str, int]) -> tuple[bytes, bytes, bytes]:
    """The bytes of one record in three parts, of which the second is the image file.

    `labels` gives the index of each class. The bytes are those that protobuf writes. Protobuf
    itself would copy the image twice, and take most of the time of an image that is only passed
    through.
    """
    encoded = example.encoded if example.is_original else encode_png(example.image)
    key = {shards.KEY: ("bytes_list", [example.key.encode()])}
    if example.boxes is None:
        before, after = _pack_label(labels[example.label]), _pack_features(key)
    else:
        boxes = _list_detection_features(example.shape, example.boxes, labels)
        before, after = b"", _pack_features({**key, **boxes})
    value = b"\x0a" + _encode_varint(len(encoded))  # of the bytes_list
    feature = b"\x0a" + _encode_varint(len(value) + len(encoded)) + value
    entry = _ENCODED_NAME + b"\x12" + _encode_varint(len(feature) + len(encoded)) + feature
    head = before + b"\x0a" + _encode_varint(len(entry) + len(encoded)) + entry
    return b"\x0a" + _encode_varint(len(head) + len(encoded) + len(after)) + head, encoded, after


def pack(features: Mapping[str, bytes | int | Sequence[bytes]]) -> bytes:
    """The bytes of a record with a value, or a list of bytes, for each feature."""
    lists: dict[str, tuple[str, Sequence[Any]]] = {}
    for name, value in features.items():
        values = [value] if isinstance(value, int | bytes) else value
        lists[name] = "int64_list" if isinstance(value, int) else "bytes_list", values
    packed = _pack_features(lists)
    return b"\x0a" + _encode_varint(len(packed)) + packed


def _list_detection_features(
    shape: tuple[int, int, int], boxes: Sequence[Box], labels: Mapping[str, int]
) -> _Features:
    """All names come after the image's. Fractions of the image hold for any size of it."""
    height, width, _ = shape
    return {
        shards.HEIGHT: ("int64_list", [height]),
        shards.WIDTH: ("int64_list", [width]),
        shards.BOX_YMIN: ("float_list", [box.ymin / height for box in boxes]),
        shards.BOX_XMIN: ("float_list", [box.xmin / width for box in boxes]),
        shards.BOX_YMAX: ("float_list", [box.ymax / height for box in boxes]),
        shards.BOX_XMAX: ("float_list", [box.xmax / width for box in boxes]),
        shards.BOX_LABEL: ("int64_list", [labels[box.label] for box in boxes]),
        shards.BOX_IS_CROWD: ("int64_list", [int(box.is_crowd) for box in boxes]),
        shards.BOX_IS_DIFFICULT: ("int64_list", [int(box.is_difficult) for box in boxes]),
    }


@functools.lru_cache(maxsize=4096)
def _pack_label(index: int) -> bytes:
    return _pack_features({shards.LABEL: ("int64_list", [index])})


def _pack_features(features: _Features) -> bytes:
    message = _TrainExample()
    for name, (kind, values) in features.items():
        feature = getattr(message.features.feature[name], kind)
        feature.SetInParent()  # an empty list is there, too
        feature.value.extend(values)
    packed: bytes = message.features.SerializeToString(deterministic=True)
    return packed


def _encode_varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first. The second case is a shortcut for lengths of images."""
    if number < 1 << 7:
        return bytes((number,))
    if 1 << 14 <= number < 1 << 21:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    return bytes((number & 0x7F | 0x80,)) + _encode_varint(number >> 7)


_ENCODED_NAME = b"\x0a" + _encode_varint(len(shards.ENCODED)) + shards.ENCODED.encode()


def parse(record: bytes) -> dict[str, list[Any]]:
    """The features of a tf.train.Example by name, as lists. Raises ValueError if it is none."""
    try:
        features = _TrainExample.FromString(record).features.feature
    except DecodeError as error:
        raise ValueError(f"not a tf.train.Example: {error}") from None
    return {
        name: list(getattr(feature, kind).value) if (kind := feature.WhichOneof("kind")) else []
        for name, feature in features.items()
    }


def encode_png(image_HWC: np.ndarray) -> bytes:
    """A PNG of a uint8 image of 1 channel or RGB, with the same bytes on every attempt."""
    import cv2

    pixels = cv2.cvtColor(image_HWC, cv2.COLOR_RGB2BGR) if image_HWC.shape[2] == 3 else image_HWC
    encoded: bytes = cv2.imencode(".png", pixels, _PNG_OPTIONS)[1].tobytes()
    return encoded


def define_message(name: str, definition: str) -> Any:
    """The class of a message, in a descriptor pool that does not clash with TensorFlow's.

    `definition` is a FileDescriptorProto in protobuf's text format.
    """
    file = text_format.Parse(definition, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


_TrainExample = define_message(
    "tensorflow.Example",
    """
    name: "trainyard/example.proto" package: "tensorflow" syntax: "proto3"
    message_type {
      name: "BytesList" field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED }
    }
    message_type {
      name: "FloatList" field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED }
    }
    message_type {
      name: "Int64List" field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED }
    }
    message_type {
      name: "Feature" oneof_decl { name: "kind" }
      field { name: "bytes_list" number: 1 oneof_index: 0 type_name: ".tensorflow.BytesList" }
      field { name: "float_list" number: 2 oneof_index: 0 type_name: ".tensorflow.FloatList" }
      field { name: "int64_list" number: 3 oneof_index: 0 type_name: ".tensorflow.Int64List" }
    }
    message_type {
      name: "Features"
      field {
        name: "feature" number: 1 label: LABEL_REPEATED
        type_name: ".tensorflow.Features.FeatureEntry"
      }
      nested_type {
        name: "FeatureEntry" options { map_entry: true }
        field { name: "key" number: 1 type: TYPE_STRING }
        field { name: "value" number: 2 type_name: ".tensorflow.Feature" }
      }
    }
    message_type {
      name: "Example" field { name: "features" number: 1 type_name: ".tensorflow.Features" }
    }
    """,
)
"""The message tf.train.Example of tensorflow/core/example/{feature,example}.proto."""
