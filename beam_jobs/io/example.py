"""Serialises and parses tf.train.Example without importing TensorFlow.

That import would cost every worker seconds. The messages are declared in a descriptor pool of their
own, so they don't clash with TensorFlow's in a process that has both. Map entries are written in
the order of their keys, so equal examples are equal bytes.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from beam_jobs.stages.stage import Example
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

_Field = descriptor_pb2.FieldDescriptorProto
_PNG = [
    16,
    1,
]  # cv2.IMWRITE_PNG_COMPRESSION: written out, so that another default of OpenCV changes nothing


def serialise(example: Example, labels: Mapping[str, int]) -> tuple[bytes, bytes, bytes]:
    """The bytes of one record in three parts, of which the second is the image file.

    `labels` gives the index of each class. The bytes are those that protobuf writes. Protobuf
    itself would copy the image twice, and take most of the time of an image that is only passed
    through.
    """
    encoded = example.encoded if example.is_original else encode_png(example.image)
    if example.boxes is None:
        before, after = (
            _label_entry(labels[example.label]),
            _entry(KEY, _bytes_feature(example.key.encode())),
        )
    else:
        before, after = b"", _entries_after_image(example, labels)
    value = b"\x0a" + _varint(len(encoded))  # of the bytes_list
    feature = b"\x0a" + _varint(len(value) + len(encoded)) + value
    entry = _ENCODED_NAME + b"\x12" + _varint(len(feature) + len(encoded)) + feature
    head = before + b"\x0a" + _varint(len(entry) + len(encoded)) + entry
    return b"\x0a" + _varint(len(head) + len(encoded) + len(after)) + head, encoded, after


def pack(features: Mapping[str, bytes | int]) -> bytes:
    """The bytes of a record with one value for each feature."""
    message = _TrainExample()
    for name, value in features.items():
        feature = message.features.feature[name]
        (feature.bytes_list if isinstance(value, bytes) else feature.int64_list).value.append(value)
    return message.SerializeToString(deterministic=True)


def unpack(record: bytes) -> dict[str, bytes | int]:
    """The features that `pack` got."""
    features = _TrainExample.FromString(record).features.feature
    return {
        name: getattr(feature, feature.WhichOneof("kind")).value[0]
        for name, feature in features.items()
    }


def _entries_after_image(example: Example, labels: Mapping[str, int]) -> bytes:
    """The features of an example for detection whose names come after the image's, in their order.

    The coordinates are fractions of the image, so that they hold for any size that a reader decodes
    or resizes to.
    """
    height, width, _ = example.shape
    boxes = example.boxes
    features = {
        HEIGHT: _int64_feature([height]),
        WIDTH: _int64_feature([width]),
        KEY: _bytes_feature(example.key.encode()),
        BOX_YMIN: _float_feature([box.ymin / height for box in boxes]),
        BOX_XMIN: _float_feature([box.xmin / width for box in boxes]),
        BOX_YMAX: _float_feature([box.ymax / height for box in boxes]),
        BOX_XMAX: _float_feature([box.xmax / width for box in boxes]),
        BOX_LABEL: _int64_feature([labels[box.label] for box in boxes]),
        BOX_IS_CROWD: _int64_feature([int(box.is_crowd) for box in boxes]),
        BOX_IS_DIFFICULT: _int64_feature([int(box.is_difficult) for box in boxes]),
    }
    return b"".join(_entry(name, features[name]) for name in sorted(features))


@functools.lru_cache(maxsize=4096)
def _label_entry(index: int) -> bytes:
    return _entry(LABEL, _int64_feature([index]))


def _entry(name: str, feature: bytes) -> bytes:
    """One entry of the map Features.feature, field 1 of Features.

    The key is in field 1 of the entry and the value in field 2.
    """
    return _delimited(b"\x0a", _delimited(b"\x0a", name.encode()) + _delimited(b"\x12", feature))


def _bytes_feature(value: bytes) -> bytes:
    return _delimited(b"\x0a", _delimited(b"\x0a", value))


def _float_feature(values: Sequence[float]) -> bytes:
    return _delimited(
        b"\x12", _delimited(b"\x0a", struct.pack(f"<{len(values)}f", *values)) if values else b""
    )


def _int64_feature(values: Sequence[int]) -> bytes:
    """A feature of numbers, which must be 0 or more."""
    return _delimited(
        b"\x1a", _delimited(b"\x0a", b"".join(map(_varint, values))) if values else b""
    )


def _delimited(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Encodes seven bits a byte, the lowest first.

    The first cases are shortcuts for the lengths that images have.
    """
    if number < 1 << 7:
        return _SMALL[number]
    if number < 1 << 14:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 1 << 21:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    return bytes((number & 0x7F | 0x80,)) + _varint(number >> 7)


_SMALL = [bytes([number]) for number in range(0x80)]
_ENCODED_NAME = _delimited(b"\x0a", ENCODED.encode())


def parse(record: bytes) -> dict[str, list]:
    """The features of a tf.train.Example, by name: lists of bytes, float or int, empty if not set.

    Raises:
      ValueError: the bytes are no such message.
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
    """A PNG of a uint8 image of 1 channel, or of 3 channels in the order RGB.

    The PNG has no loss, and the same bytes on every attempt.
    """
    import cv2

    pixels = cv2.cvtColor(image_HWC, cv2.COLOR_RGB2BGR) if image_HWC.shape[2] == 3 else image_HWC
    return cv2.imencode(".png", pixels, _PNG)[1].tobytes()


def _declare_messages() -> descriptor_pb2.FileDescriptorProto:
    """Declares tf.train.Example as tensorflow/core/example/{feature,example}.proto does."""
    file = descriptor_pb2.FileDescriptorProto(
        name="trainyard/example.proto", package="tensorflow", syntax="proto3"
    )
    add = functools.partial(_add_field, label=_Field.LABEL_OPTIONAL)
    for name, kind in (
        ("BytesList", _Field.TYPE_BYTES),
        ("FloatList", _Field.TYPE_FLOAT),
        ("Int64List", _Field.TYPE_INT64),
    ):
        _add_field(file.message_type.add(name=name), "value", 1, kind, label=_Field.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    add(feature, "bytes_list", 1, ".tensorflow.BytesList", oneof_index=0)
    add(feature, "float_list", 2, ".tensorflow.FloatList", oneof_index=0)
    add(feature, "int64_list", 3, ".tensorflow.Int64List", oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, _Field.TYPE_STRING)
    add(entry, "value", 2, ".tensorflow.Feature")
    _add_field(
        features, "feature", 1, ".tensorflow.Features.FeatureEntry", label=_Field.LABEL_REPEATED
    )
    add(file.message_type.add(name="Example"), "features", 1, ".tensorflow.Features")
    return file


def _add_field(
    message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: int | str, **options: int
) -> None:
    """Adds a field. `kind` is a scalar type, or the name of a message."""
    if isinstance(kind, str):
        message.field.add(
            name=name, number=number, type=_Field.TYPE_MESSAGE, type_name=kind, **options
        )
    else:
        message.field.add(name=name, number=number, type=kind, **options)


def _make_train_example() -> type:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(_declare_messages().SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


_TrainExample = _make_train_example()
