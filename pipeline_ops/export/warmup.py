"""Warm-up requests of a model, which save the first user a wait.

TensorFlow Serving replays them before it takes a model into service.
`assets.extra/tf_serving_warmup_requests` holds records of the type PredictionLog. The package that
has this type depends on a second TensorFlow, so its fields are written here by their numbers in
tensorflow_serving/apis/{prediction_log,predict,model}.proto.
"""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
from google.protobuf.internal.encoder import BytesEncoder

from pipeline_ops.served import contract
from pipeline_ops.served.references import References, pack_example

_NUM_IMAGES = (1, 8)


def write_warmup(folder: Path, model: str, references: References) -> None:
    """Writes requests for each signature, of one and of eight images, into a version's folder."""
    from pipeline_ops.input.tensorflow_start import tf

    file = folder / "assets.extra" / "tf_serving_warmup_requests"
    file.parent.mkdir(exist_ok=True)
    images = references.images
    inputs = {contract.IMAGES: (contract.IMAGES, images)}
    if references.model.takes_files:
        files = [record.file for record, _ in references.files] or references.encoded
        examples = [pack_example(file) for file in files]
        inputs[contract.SERVING_DEFAULT] = contract.IMAGE_BYTES, np.array(files, object)
        inputs[contract.EXAMPLES] = contract.EXAMPLES, np.array(examples, object)
    else:
        inputs[contract.SERVING_DEFAULT] = contract.PREPARED_IMAGES, images
    with tf.io.TFRecordWriter(str(file)) as writer:
        sizes = itertools.product(_NUM_IMAGES, sorted(inputs.items()))
        for count, (signature, (name, values)) in sizes:
            if count <= len(values):
                tensor = tf.make_tensor_proto(values[:count]).SerializeToString(deterministic=True)
                spec = _encode((1, model.encode()), (3, signature.encode()))
                request = _encode((1, spec), (2, _encode((1, name.encode()), (2, tensor))))
                writer.write(_encode((6, _encode((1, request)))))


def _encode(*fields: tuple[int, bytes]) -> bytes:
    """Encodes fields of a protocol buffer, each a string, bytes or a message."""
    output = io.BytesIO()
    for number, content in fields:
        BytesEncoder(number, False, False)(output.write, content, True)
    return output.getvalue()
