"""Serialises and parses tf.train.Example without importing TensorFlow.

That import would cost every worker seconds. Map entries are written in the order of their keys, so
equal examples are equal bytes.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from beam_jobs.stages.stage import Box, Example
from pipeline_ops.artifacts.dataset import (
    BOX_IS_CROWD,
    BOX_IS_DIFFICULT,
    BOX_LABEL,
    BOX_XMAX,
    BOX_XMIN,
    BOX_YMAX,
    BOX_YMIN,
    ENCODED,
    HEIGHT,
    KEY,
    LABEL,
    WIDTH,
)

if TYPE_CHECKING:
    import numpy as np

_PNG_OPTIONS = [16, 1]
"""cv2.IMWRITE_PNG_COMPRESSION. It is explicit, so that no new default of OpenCV changes bytes."""


def serialise(example: Example, labels: Mapping[str, int]) -> tuple[bytes, bytes, bytes]:
    """The bytes of one record in three parts, of which the second is the image file.

    `labels` gives the index of each class. The bytes are those that protobuf writes. Protobuf
    itself would copy the image twice, and take most of the time of an image that is only passed
    through.
    """
    encoded = example.encoded if example.is_original else encode_png(example.image)
    key = _bytes_feature(example.key.encode())
    if example.boxes is None:
        before, after = _encode_label_entry(labels[example.label]), _encode_entry(KEY, key)
    else:
        before, after = b"", _encode_detection_entries(example.shape, key, example.boxes, labels)
    value = b"\x0a" + _encode_varint(len(encoded))  # of the bytes_list
    feature = b"\x0a" + _encode_varint(len(value) + len(encoded)) + value
    entry = _ENCODED_NAME + b"\x12" + _encode_varint(len(feature) + len(encoded)) + feature
    head = before + b"\x0a" + _encode_varint(len(entry) + len(encoded)) + entry
    return b"\x0a" + _encode_varint(len(head) + len(encoded) + len(after)) + head, encoded, after


def pack(features: Mapping[str, bytes | int]) -> bytes:
    """The bytes of a record with one value for each feature."""
    message = _TrainExample()
    for name, value in features.items():
        feature = message.features.feature[name]
        (feature.bytes_list if isinstance(value, bytes) else feature.int64_list).value.append(value)
    record: bytes = message.SerializeToString(deterministic=True)
    return record


def unpack(record: bytes) -> dict[str, bytes | int]:
    """The features that `pack` got."""
    return {name: values[0] for name, values in parse(record).items()}


def _encode_detection_entries(
    shape: tuple[int, int, int], key: bytes, boxes: Sequence[Box], labels: Mapping[str, int]
) -> bytes:
    """The features of an example for detection. All their names come after the image's.

    The coordinates are fractions of the image, so that they hold for any size that a reader decodes
    or resizes to.
    """
    height, width, _ = shape
    features = {
        HEIGHT: _int64_feature([height]),
        WIDTH: _int64_feature([width]),
        KEY: key,
        BOX_YMIN: _float_feature([box.ymin / height for box in boxes]),
        BOX_XMIN: _float_feature([box.xmin / width for box in boxes]),
        BOX_YMAX: _float_feature([box.ymax / height for box in boxes]),
        BOX_XMAX: _float_feature([box.xmax / width for box in boxes]),
        BOX_LABEL: _int64_feature([labels[box.label] for box in boxes]),
        BOX_IS_CROWD: _int64_feature([int(box.is_crowd) for box in boxes]),
        BOX_IS_DIFFICULT: _int64_feature([int(box.is_difficult) for box in boxes]),
    }
    return b"".join(_encode_entry(name, features[name]) for name in sorted(features))


@functools.lru_cache(maxsize=4096)
def _encode_label_entry(index: int) -> bytes:
    return _encode_entry(LABEL, _int64_feature([index]))


def _encode_entry(name: str, feature: bytes) -> bytes:
    """One entry of the map Features.feature, field 1 of Features.

    The key is in field 1 of the entry and the value in field 2.
    """
    return _encode_delimited(
        b"\x0a", _encode_delimited(b"\x0a", name.encode()) + _encode_delimited(b"\x12", feature)
    )


def _bytes_feature(value: bytes) -> bytes:
    return _encode_delimited(b"\x0a", _encode_delimited(b"\x0a", value))


def _float_feature(values: Sequence[float]) -> bytes:
    packed = struct.pack(f"<{len(values)}f", *values)
    return _encode_delimited(b"\x12", _encode_delimited(b"\x0a", packed) if values else b"")


def _int64_feature(values: Sequence[int]) -> bytes:
    """A feature of numbers, which must be 0 or more."""
    packed = b"".join(map(_encode_varint, values))
    return _encode_delimited(b"\x1a", _encode_delimited(b"\x0a", packed) if values else b"")


def _encode_delimited(tag: bytes, content: bytes) -> bytes:
    return tag + _encode_varint(len(content)) + content


def _encode_varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first. The first cases are shortcuts for lengths of images."""
    if number < 1 << 7:
        return _ONE_BYTE_VARINTS[number]
    if number < 1 << 14:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 1 << 21:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    return bytes((number & 0x7F | 0x80,)) + _encode_varint(number >> 7)


_ONE_BYTE_VARINTS = [bytes([number]) for number in range(0x80)]
_ENCODED_NAME = _encode_delimited(b"\x0a", ENCODED.encode())


def parse(record: bytes) -> dict[str, list[Any]]:
    """The features of a tf.train.Example, by name: lists of bytes, float or int, empty if not set.

    Raises ValueError if the bytes are no such message.
    """
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
    """The class of a protobuf message whose own package would import TensorFlow.

    It is in a descriptor pool of its own, so it does not clash with TensorFlow's. `definition` is a
    FileDescriptorProto in protobuf's text format.
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
