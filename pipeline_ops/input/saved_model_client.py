"""A served model, and examples in the form that it takes: encoded images in, probabilities out.

Evaluation uses it to give champion and challenger the same inputs. Export uses it to give the
SavedModel the inputs that training gave the model in memory. The SavedModel itself decodes the
images.

Legend: N images, C classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline_ops.artifacts.dataset import ENCODED, KEY, LABEL
from pipeline_ops.errors import DataError
from pipeline_ops.storage.read_errors import make_read_error, summarize_error

_SIGNATURE, _INPUT, _OUTPUTS = "serving_default", "image_bytes", ("probabilities", "classes")


@dataclasses.dataclass(frozen=True)
class EncodedBatch:
    """N examples: keys as text, images as the bytes of their files, labels int64 [N].

    A label is -1 where an example has none. `features` has the first value of each other requested
    feature, None where an example lacks it.
    """

    keys: list[str]
    images: np.ndarray
    labels: np.ndarray
    features: dict[str, list[bytes | int | float | None]] = dataclasses.field(default_factory=dict)


def read_encoded_batches(
    paths: Sequence[str],
    batch: int,
    removed: Sequence[Sequence[int]] = (),
    features: Sequence[str] = (),
) -> Iterator[EncodedBatch]:
    """Yields every example of the shards once, in their order. The last batch may be smaller.

    `removed` has the positions to skip, for each shard. `features` has the names of the other
    features to read from each example.
    """
    from pipeline_ops.input.reading import read_records, translate_read_errors
    from pipeline_ops.input.tensorflow_start import tf

    fixed = {
        ENCODED: tf.io.FixedLenFeature([], tf.string),
        LABEL: tf.io.FixedLenFeature([], tf.int64, -1),
        KEY: tf.io.FixedLenFeature([], tf.string),
    }

    def parse(serialized_N: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        return (serialized_N if features else serialized_N[:0]), tf.io.parse_example(
            serialized_N, fixed
        )

    with translate_read_errors(paths):
        for serialized_N, parsed in (
            read_records(paths, removed).batch(batch).map(parse).prefetch(1).as_numpy_iterator()
        ):
            keys = [key.decode("utf-8", "backslashreplace") for key in parsed[KEY]]
            yield EncodedBatch(
                keys, parsed[ENCODED], parsed[LABEL], _read_features(serialized_N, features)
            )


def read_serialized(path: str) -> list[bytes]:
    """Returns every record of a shard. Raises DataError if the shard cannot be read."""
    from pipeline_ops.input.reading import read_records, translate_read_errors

    with translate_read_errors([path]):
        return list(read_records([path]).as_numpy_iterator())


def _read_features(
    serialized_N: Sequence[bytes], names: Sequence[str]
) -> dict[str, list[bytes | int | float | None]]:
    """Reads the features one by one: their types are unknown, and an example may lack them."""
    from pipeline_ops.input.tensorflow_start import tf

    def read(features: Any, name: str) -> bytes | int | float | None:
        kind = features[name].WhichOneof("kind") if name in features else None
        values = getattr(features[name], kind).value if kind else ()
        return values[0] if values else None

    found = [tf.train.Example.FromString(one).features.feature for one in serialized_N]
    return {name: [read(features, name) for features in found] for name in names}


class SavedModelClient:
    """A SavedModel with the signature that `artifacts.results.SAVED_MODEL` describes.

    `name` is its name in messages, for example "the challenger". `outputs` are the outputs that its
    answers must have.
    """

    def __init__(
        self, folder: Path, name: str, num_classes: int, outputs: Sequence[str] = _OUTPUTS
    ):
        from pipeline_ops.input.tensorflow_start import tf

        self._name, self._num_classes = name, num_classes
        try:
            # Kept: its variables live no longer than it does.
            self.loaded = tf.saved_model.load(str(folder))
        except (OSError, ValueError, tf.errors.OpError) as error:
            raise make_read_error(f"{folder}: cannot load {name} as a SavedModel", error) from error
        self._signature = self.loaded.signatures.get(_SIGNATURE)
        if (
            self._signature is None
            or set(self._signature.structured_input_signature[1]) != {_INPUT}
            or not set(outputs) <= set(self._signature.structured_outputs)
        ):
            raise DataError(
                f"{folder}: {name} must have the signature {_SIGNATURE} from {_INPUT} to "
                f"{' and '.join(outputs)}. Train it again"
            )

    def classify(self, batch: EncodedBatch) -> tuple[np.ndarray, np.ndarray]:
        """Returns probabilities float32 [N, C] and classes int64 [N]."""
        outputs = self.predict(batch)
        probabilities, classes = (outputs[name] for name in _OUTPUTS)
        if probabilities.shape != (len(batch.keys), self._num_classes):
            raise DataError(
                f"{self._name} returns the shape {probabilities.shape}, expected "
                f"{(len(batch.keys), self._num_classes)}: a probability for each class of the data "
                "set. Train again on this data set"
            )
        return probabilities, classes

    def predict(self, batch: EncodedBatch) -> dict[str, np.ndarray]:
        """Returns the outputs of `serving_default`. Raises DataError for an image that the model
        cannot take.
        """
        try:
            return self.call_signature(_SIGNATURE, **{_INPUT: batch.images})
        except DataError as error:
            raise DataError(f"{error} (examples {batch.keys[0]} to {batch.keys[-1]})") from error

    def call_signature(self, signature: str, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the outputs of any signature."""
        from pipeline_ops.input.tensorflow_start import tf

        if signature not in self.loaded.signatures:
            raise DataError(f"{self._name} has no signature {signature}. Train again")
        try:
            outputs = self.loaded.signatures[signature](
                **{name: tf.constant(value) for name, value in inputs.items()}
            )
        except (tf.errors.OpError, TypeError) as error:
            raise DataError(
                f"{self._name} failed in the signature {signature}: {summarize_error(error)}"
            ) from error
        return {name: output.numpy() for name, output in outputs.items()}
