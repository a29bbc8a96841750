"""Serialises examples as tf.train.Example without importing TensorFlow, which would cost every worker seconds.

The messages are declared in a descriptor pool of their own, so they don't clash with TensorFlow's in a process that
has both. Map entries are written in the order of their keys, so equal examples are equal bytes.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from beam_jobs.stages.stage import Example
from pipeline_ops.contracts.shards import ENCODED, KEY, LABEL

if TYPE_CHECKING:
    import numpy as np

_Field = descriptor_pb2.FieldDescriptorProto
_PNG = [16, 1]  # cv2.IMWRITE_PNG_COMPRESSION: written out, so that another default of OpenCV changes nothing


def serialise(example: Example, label: int) -> bytes:
    """The bytes of one record; `label` is the index of the example's class."""
    message = _TrainExample()
    feature = message.features.feature
    feature[ENCODED].bytes_list.value.append(example.encoded if example.is_original else encode_png(example.image))
    feature[LABEL].int64_list.value.append(label)
    feature[KEY].bytes_list.value.append(example.key.encode())
    return message.SerializeToString(deterministic=True)


def encode_png(image_HWC: np.ndarray) -> bytes:
    """A PNG of a uint8 image of 1 channel, or 3 in the order RGB: without loss, and the same bytes on every try."""
    import cv2

    pixels = cv2.cvtColor(image_HWC, cv2.COLOR_RGB2BGR) if image_HWC.shape[2] == 3 else image_HWC
    return cv2.imencode(".png", pixels, _PNG)[1].tobytes()


def _declare_messages() -> descriptor_pb2.FileDescriptorProto:
    """tensorflow/core/example/{feature,example}.proto, as far as tf.train.Example goes."""
    file = descriptor_pb2.FileDescriptorProto(name="trainyard/example.proto", package="tensorflow", syntax="proto3")
    add = functools.partial(_add_field, label=_Field.LABEL_OPTIONAL)
    for name, kind in (("BytesList", _Field.TYPE_BYTES), ("Int64List", _Field.TYPE_INT64)):
        _add_field(file.message_type.add(name=name), "value", 1, kind, label=_Field.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    add(feature, "bytes_list", 1, ".tensorflow.BytesList", oneof_index=0)
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
