"""Serialises examples as tf.train.Example, and parses what others wrote, without importing TensorFlow, which would cost every worker seconds.

The messages are declared in a descriptor pool of their own, so they don't clash with TensorFlow's in a process that
has both. Map entries are written in the order of their keys, so equal examples are equal bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from beam_jobs.stages.stage import Example
from pipeline_ops.contracts.shards import (
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
_PNG = [16, 1]  # cv2.IMWRITE_PNG_COMPRESSION: written out, so that another default of OpenCV changes nothing


def serialise(example: Example, labels: Mapping[str, int]) -> bytes:
    """The bytes of one record; `labels` gives the index of each class."""
    message = _TrainExample()
    feature = message.features.feature
    feature[ENCODED].bytes_list.value.append(example.encoded if example.is_original else encode_png(example.image))
    feature[KEY].bytes_list.value.append(example.key.encode())
    if example.boxes is None:
        feature[LABEL].int64_list.value.append(labels[example.label])
    else:
        _add_boxes(feature, example, labels)
    return message.SerializeToString(deterministic=True)


def pack(features: Mapping[str, bytes | int]) -> bytes:
    """The bytes of a record with one value for each feature."""
    message = _TrainExample()
    for name, value in features.items():
        feature = message.features.feature[name]
        (feature.bytes_list if isinstance(value, bytes) else feature.int64_list).value.append(value)
    return message.SerializeToString(deterministic=True)


def unpack(record: bytes) -> dict[str, bytes | int]:
    """What `pack` was given."""
    features = _TrainExample.FromString(record).features.feature
    return {name: getattr(feature, feature.WhichOneof("kind")).value[0] for name, feature in features.items()}


def _add_boxes(feature: Any, example: Example, labels: Mapping[str, int]) -> None:
    """The coordinates are fractions of the image, so that they hold for any size that a reader decodes or resizes to."""
    height, width, _ = example.image.shape
    boxes = example.boxes
    feature[HEIGHT].int64_list.value.append(height)
    feature[WIDTH].int64_list.value.append(width)
    feature[BOX_YMIN].float_list.value.extend(box.ymin / height for box in boxes)
    feature[BOX_XMIN].float_list.value.extend(box.xmin / width for box in boxes)
    feature[BOX_YMAX].float_list.value.extend(box.ymax / height for box in boxes)
    feature[BOX_XMAX].float_list.value.extend(box.xmax / width for box in boxes)
    feature[BOX_LABEL].int64_list.value.extend(labels[box.label] for box in boxes)
    feature[BOX_IS_CROWD].int64_list.value.extend(int(box.is_crowd) for box in boxes)
    feature[BOX_IS_DIFFICULT].int64_list.value.extend(int(box.is_difficult) for box in boxes)


def parse(record: bytes) -> dict[str, list]:
    """The features of a tf.train.Example, by name: lists of bytes, float or int, empty where nothing is set.

    Raises:
      ValueError: the bytes are no such message.
    """
    try:
        features = _TrainExample.FromString(record).features.feature
    except DecodeError as error:
        raise ValueError(f"not a tf.train.Example: {error}") from None
    return {name: list(getattr(feature, kind).value) if (kind := feature.WhichOneof("kind")) else [] for name, feature in features.items()}


def encode_png(image_HWC: np.ndarray) -> bytes:
    """A PNG of a uint8 image of 1 channel, or 3 in the order RGB: without loss, and the same bytes on every try."""
    import cv2

    pixels = cv2.cvtColor(image_HWC, cv2.COLOR_RGB2BGR) if image_HWC.shape[2] == 3 else image_HWC
    return cv2.imencode(".png", pixels, _PNG)[1].tobytes()


def _declare_messages() -> descriptor_pb2.FileDescriptorProto:
    """tensorflow/core/example/{feature,example}.proto, as far as tf.train.Example goes."""
    file = descriptor_pb2.FileDescriptorProto(name="trainyard/example.proto", package="tensorflow", syntax="proto3")
    add = functools.partial(_add_field, label=_Field.LABEL_OPTIONAL)
    for name, kind in (("BytesList", _Field.TYPE_BYTES), ("FloatList", _Field.TYPE_FLOAT), ("Int64List", _Field.TYPE_INT64)):
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
    _add_field(features, "feature", 1, ".tensorflow.Features.FeatureEntry", label=_Field.LABEL_REPEATED)
    add(file.message_type.add(name="Example"), "features", 1, ".tensorflow.Features")
    return file


def _add_field(message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: int | str, **options: int) -> None:
    """`kind` is a scalar type, or the name of a message."""
    if isinstance(kind, str):
        message.field.add(name=name, number=number, type=_Field.TYPE_MESSAGE, type_name=kind, **options)
    else:
        message.field.add(name=name, number=number, type=kind, **options)


def _make_train_example() -> type:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(_declare_messages().SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


_TrainExample = _make_train_example()
