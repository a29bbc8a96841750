"""Warm-up requests of a model, which save the first user a wait.

TensorFlow Serving replays them before it takes a model into service.
`assets.extra/tf_serving_warmup_requests` holds records of the type PredictionLog. That type is not
part of TensorFlow, and the package that has it depends on a second TensorFlow. The three messages
that are needed are a few lines here. Their field numbers are those of
tensorflow_serving/apis/{prediction_log,predict,model}.proto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

WARMUP_PATH = "assets.extra/tf_serving_warmup_requests"
_LOG_PREDICT, _PREDICT_REQUEST = 6, 1
_REQUEST_MODEL, _REQUEST_INPUTS = 1, 2
_MODEL_NAME, _MODEL_SIGNATURE = 1, 3
_MAP_KEY, _MAP_VALUE = 1, 2
_LENGTH_DELIMITED = 2


def write_warmup(
    folder: Path, model: str, requests: Sequence[tuple[str, Mapping[str, np.ndarray]]]
) -> None:
    """Writes requests into a version's folder.

    A request is a pair of a signature and its inputs by name.
    """
    from pipeline_ops.input.tensorflow_start import tf

    file = folder / WARMUP_PATH
    file.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for signature, inputs in requests:
            spec = _encode((_MODEL_NAME, model.encode()), (_MODEL_SIGNATURE, signature.encode()))
            request = _encode((_REQUEST_MODEL, spec))
            for name, value in inputs.items():
                tensor = tf.make_tensor_proto(value).SerializeToString(deterministic=True)
                entry = _encode((_MAP_KEY, name.encode()), (_MAP_VALUE, tensor))
                request += _encode((_REQUEST_INPUTS, entry))
            writer.write(_encode((_LOG_PREDICT, _encode((_PREDICT_REQUEST, request)))))


def _encode(*fields: tuple[int, bytes]) -> bytes:
    """Encodes fields of a protocol buffer, each a string, bytes or a message."""
    return b"".join(
        _encode_varint(number << 3 | _LENGTH_DELIMITED) + _encode_varint(len(content)) + content
        for number, content in fields
    )


def _encode_varint(value: int) -> bytes:
    """Encodes seven bits per byte, the lowest first. The eighth bit announces more bytes."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
