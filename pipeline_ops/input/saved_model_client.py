"""A served model, and examples in the form that it takes: encoded images in, predictions out.

Evaluation uses it to give champion and challenger the same inputs, and to compare detections with
true boxes. Export uses it to give the SavedModel the inputs that training gave the model in memory.
The SavedModel itself decodes the images.

Legend: N images, C classes, D detections of an image.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline_ops.artifacts.dataset import BOX_EDGES, BOX_IS_CROWD, BOX_LABEL, ENCODED, KEY, LABEL
from pipeline_ops.errors import DataError
from pipeline_ops.storage.read_errors import make_read_error, summarize_error

_SIGNATURE, _INPUT, _OUTPUTS = "serving_default", "image_bytes", ("probabilities", "classes")
DETECTOR_OUTPUTS = ("boxes", "scores", "classes", "num_detections")
"""The outputs of a detector's `serving_default`, described in `artifacts.results.SAVED_MODEL`."""


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
    from pipeline_ops.input.reading import iterate_records, read_records
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

    batches = read_records(paths, removed).batch(batch).map(parse).prefetch(1)
    for serialized_N, parsed in iterate_records(batches, paths):
        keys = [key.decode("utf-8", "backslashreplace") for key in parsed[KEY]]
        found = _read_features(serialized_N, features)
        yield EncodedBatch(keys, parsed[ENCODED], parsed[LABEL], found)


def read_serialized(path: str) -> list[bytes]:
    """Returns every record of a shard. Raises DataError if the shard cannot be read."""
    from pipeline_ops.input.reading import iterate_records, read_records

    return list(iterate_records(read_records([path]), [path]))


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


@dataclasses.dataclass(frozen=True)
class TrueBoxes:
    """One image and its true boxes.

    Attributes:
      boxes: float [n, 4], ymin xmin ymax xmax as fractions.
      classes: int [n].
      is_crowd: bool [n].
      features: the first value of each other requested feature, None where the example lacks it.
    """

    key: str
    image: bytes
    boxes: np.ndarray
    classes: np.ndarray
    is_crowd: np.ndarray
    features: dict[str, bytes | int | float | None] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ImageDetections:
    """The answer of one model to one image.

    `boxes`: float [D, 4], ymin xmin ymax xmax as fractions. `classes`: int [D]. `scores`: float
    [D].
    """

    boxes: np.ndarray
    classes: np.ndarray
    scores: np.ndarray

    def filter_by_score(self, min_score: float) -> ImageDetections:
        """Returns the detections with at least this score."""
        kept = self.scores >= min_score
        return ImageDetections(self.boxes[kept], self.classes[kept], self.scores[kept])


def read_true_boxes(
    paths: Sequence[str], removed: Sequence[Sequence[int]] = (), other_features: Sequence[str] = ()
) -> Iterator[TrueBoxes]:
    """Yields every example of the shards, in their order.

    `other_features` has the names of the other features to read from each example.
    """
    from pipeline_ops.input.reading import iterate_records, read_records
    from pipeline_ops.input.tensorflow_start import tf

    features = {name: tf.io.FixedLenFeature([], tf.string) for name in (ENCODED, KEY)}
    features |= {name: tf.io.VarLenFeature(tf.float32) for name in BOX_EDGES}
    features |= {name: tf.io.VarLenFeature(tf.int64) for name in (BOX_LABEL, BOX_IS_CROWD)}

    def parse(serialized: tf.Tensor) -> tuple[tf.Tensor, ...]:
        parsed = tf.io.parse_single_example(serialized, features)
        corners = tf.stack([parsed[edge].values for edge in BOX_EDGES], -1)
        values = [parsed[name].values for name in (BOX_LABEL, BOX_IS_CROWD)]
        rest = serialized if other_features else tf.constant(b"")
        return rest, parsed[KEY], parsed[ENCODED], corners, *values

    records = read_records(paths, removed).map(parse).prefetch(8)
    for rest, key, image, boxes, classes, is_crowd in iterate_records(records, paths):
        found = _read_features([rest], other_features)
        yield TrueBoxes(
            key.decode("utf-8", "backslashreplace"),
            image,
            boxes,
            classes,
            is_crowd > 0,
            {name: values[0] for name, values in found.items()},
        )


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


def pack_detections(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns float32 [N, D, 6]: ymin, xmin, ymax, xmax, score, class. Padding is all 0."""
    scores, classes = (
        np.asarray(outputs[name], np.float32)[..., None] for name in ("scores", "classes")
    )
    return np.concatenate([np.asarray(outputs["boxes"], np.float32), scores, classes], axis=-1)
