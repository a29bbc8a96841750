"""A served model, and examples in the forms that it takes: encoded images in, predictions out.

Evaluation uses it to give champion and challenger the same inputs, and to compare detections with
true boxes. Export uses it to give the SavedModel the inputs that training gave the model in memory.
The SavedModel decodes raw files, which have been through no stage. Images of shards have been
through all of them, so the client decodes them, and brings them to the size of the model.

Legend: N images, C classes, D detections of an image.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline_ops.contract.dataset import (
    BOX_EDGES,
    BOX_IS_CROWD,
    BOX_LABEL,
    ENCODED,
    KEY,
    LABEL,
    RAW_EXAMPLES,
    RAW_FILE,
    RAW_KEY,
    RAW_KIND,
    RAW_PIXELS,
)
from pipeline_ops.errors import DataError
from pipeline_ops.served import contract
from pipeline_ops.served.preprocessing import Preprocessing, place_boxes
from pipeline_ops.storage import tfrecord
from pipeline_ops.storage.read_errors import make_read_error, summarize_error

if TYPE_CHECKING:
    import tensorflow as tf


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
class RawRecord:
    """A raw record of the test split, as it was before any stage.

    Attributes:
      file: the image file. Empty if the shard holds the same bytes.
      kind: for messages, such as "JPEG, EXIF 6".
      examples: the keys of the examples that were made of it.
      pixels: PNG files of these after all stages, without the loss of `encode`. Most records have
        none.
    """

    key: str
    file: bytes
    kind: str
    examples: list[str]
    pixels: list[bytes]

    @property
    def is_servable(self) -> bool:
        """Returns whether a served model takes a file of this format."""
        return self.file.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"))


def read_raw_records(paths: Sequence[str]) -> Iterator[RawRecord]:
    """Yields the raw records of files of a data set. Raises DataError for a damaged one."""
    for path in paths:
        try:
            yield from map(parse_raw_record, tfrecord.read_records(Path(path)))
        except (ValueError, OSError) as error:
            cure = ". Run preprocess again."
            raise make_read_error(f"{path} cannot be read", error, cure) from error


def parse_raw_record(serialized: bytes) -> RawRecord:
    from pipeline_ops.input.tensorflow_start import tf

    features = tf.train.Example.FromString(serialized).features.feature

    def read(name: str) -> list[bytes]:
        return list(features[name].bytes_list.value) if name in features else []

    key, file, kind = (b"".join(read(name)) for name in (RAW_KEY, RAW_FILE, RAW_KIND))
    examples = [example.decode("utf-8", "backslashreplace") for example in read(RAW_EXAMPLES)]
    texts = (text.decode("utf-8", "backslashreplace") for text in (key, kind))
    return RawRecord(next(texts), file, next(texts), examples, read(RAW_PIXELS))


def pack_raw_record(record: RawRecord) -> bytes:
    """The inverse of `parse_raw_record`."""
    from pipeline_ops.input.tensorflow_start import tf

    values = {
        RAW_KEY: [record.key.encode()],
        RAW_FILE: [record.file],
        RAW_KIND: [record.kind.encode()],
        RAW_EXAMPLES: [example.encode() for example in record.examples],
        RAW_PIXELS: record.pixels,
    }
    feature = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
        for name, value in values.items()
    }
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    packed: bytes = example.SerializeToString(deterministic=True)
    return packed


def decode_pixels(
    encoded: Sequence[bytes], image_shape: Sequence[int], names: Sequence[str] = ()
) -> np.ndarray:
    """Returns float32 [N, H, W, C] of images of shards, which have the size of the model.

    Raises DataError for a file that is no image, by its name if it has one, or for another size.
    """
    from pipeline_ops.input.images import decode_image
    from pipeline_ops.input.tensorflow_start import tf

    images = np.empty((len(encoded), *image_shape), np.float32)
    for index, file in enumerate(encoded):
        name = names[index] if names else "an image"
        try:
            image = decode_image(tf.constant(file), image_shape[-1]).numpy()
        except tf.errors.OpError as error:
            raise DataError(f"{name} cannot be decoded: {summarize_error(error)}") from error
        if image.shape != tuple(image_shape):
            wanted = tuple(image_shape)
            raise DataError(f"{name} has the shape {image.shape}, the model takes {wanted}")
        images[index] = image
    return images


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
    """A SavedModel with the signatures of `contract.py`.

    `name` is its name in messages, for example "the challenger". `outputs` are the outputs that its
    answers must have. Versions that were published before their stages were an asset take images of
    shards by `serving_default`, which only brings them to their own size.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        num_classes: int,
        outputs: Sequence[str] = contract.CLASSIFIER_OUTPUTS,
    ):
        from pipeline_ops.input.tensorflow_start import tf

        self._name, self._num_classes = name, num_classes
        try:
            # Kept: its variables live no longer than it does.
            self.loaded = tf.saved_model.load(str(folder))
        except (OSError, ValueError, tf.errors.OpError) as error:
            raise make_read_error(f"{folder}: cannot load {name} as a SavedModel", error) from error
        self.preprocessing = Preprocessing.read(folder)
        lists_stages = bool(self.preprocessing.stages)
        signature, given = (
            (contract.IMAGES, contract.IMAGES)
            if lists_stages
            else (contract.SERVING_DEFAULT, contract.IMAGE_BYTES)
        )
        found = self.loaded.signatures.get(signature)
        if (
            found is None
            or _list_inputs(found) != {given}
            or not set(outputs) <= set(found.structured_outputs)
        ):
            raise DataError(
                f"{folder}: {name} must have the signature {signature} from {given} to "
                f"{' and '.join(outputs)}. Train it again"
            )

    @property
    def takes_files(self) -> bool:
        """Returns whether the model takes raw files. Else its clients prepare them."""
        default = self.loaded.signatures.get(contract.SERVING_DEFAULT)
        return default is not None and _list_inputs(default) == {contract.IMAGE_BYTES}

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the model's images."""
        [spec] = self.loaded.signatures[contract.IMAGES].structured_input_signature[1].values()
        _, height, width, channels = spec.shape
        return height, width, channels

    def classify(self, batch: EncodedBatch) -> tuple[np.ndarray, np.ndarray]:
        """Returns probabilities float32 [N, C] and classes int64 [N]."""
        outputs = self.predict(batch)
        probabilities, classes = (outputs[name] for name in contract.CLASSIFIER_OUTPUTS)
        self.check_shape(probabilities, len(batch.keys))
        return probabilities, classes

    def check_shape(self, probabilities: np.ndarray, num_images: int) -> None:
        """Raises DataError unless there is a probability for each image and class."""
        wanted = num_images, self._num_classes
        if probabilities.shape != wanted:
            raise DataError(
                f"{self._name} returns the shape {probabilities.shape}, expected {wanted}: a "
                "probability for each class of the data set. Train again on this data set"
            )

    def predict(self, batch: EncodedBatch) -> dict[str, np.ndarray]:
        """Returns the outputs for images of shards. Raises DataError for an image that the model
        cannot take.
        """
        try:
            return self._answer_prepared(batch.images)
        except DataError as error:
            raise DataError(f"{error} (examples {batch.keys[0]} to {batch.keys[-1]})") from error

    def _answer_prepared(self, image_bytes: np.ndarray) -> dict[str, np.ndarray]:
        from pipeline_ops.input.tensorflow_start import tf

        if not self.preprocessing.stages:
            return self.call_signature(contract.SERVING_DEFAULT, image_bytes=image_bytes)
        try:
            images, windows = self._prepare(tf.constant(image_bytes))
        except tf.errors.OpError as error:
            raise DataError(f"an image cannot be decoded: {summarize_error(error)}") from error
        outputs = self.call_signature(contract.IMAGES, images=images)
        if "boxes" in outputs:
            outputs["boxes"] = place_boxes(outputs, windows).numpy()
        return outputs

    @functools.cached_property
    def _prepare(self) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
        """A function of N image files of shards, string [N].

        It returns images for the model, float32 [N, H, W, C], and their windows, float32 [N, 4]. A
        data set may have images of another size than the one on which the model was trained.
        """
        from pipeline_ops.input.images import decode_image
        from pipeline_ops.input.tensorflow_start import tf

        shape = self.image_shape

        def prepare(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            image_HWC = decode_image(encoded, shape[-1])
            images, windows = self.preprocessing.serve_prepared(image_HWC, shape)
            return images[0], windows[0]

        spec = tf.TensorSpec(shape, tf.uint8), tf.TensorSpec([4], tf.float32)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
        def prepare_all(encoded_N: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.device("CPU:0"):
                images, windows = tf.map_fn(prepare, encoded_N, fn_output_signature=spec)
                return tf.cast(images, tf.float32), windows

        run: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]] = prepare_all
        return run

    def answer_as_served(self, image: bytes) -> dict[str, np.ndarray]:
        """Returns the outputs for one file: raw, if the model takes raw files."""
        files = np.array([image], object)
        if self.takes_files:
            return self.call_signature(contract.SERVING_DEFAULT, image_bytes=files)
        return self._answer_prepared(files)

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


@contextlib.contextmanager
def skip_graph_optimizer() -> Iterator[None]:
    """Calls signatures without TensorFlow's graph optimizer (grappler) in the `with` block.

    At the first call of a signature it takes half a second, which a few calls do not win back.
    """
    from pipeline_ops.input.tensorflow_start import tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def _list_inputs(signature: Any) -> set[str]:
    return set(signature.structured_input_signature[1])


def pack_detections(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns float32 [N, D, 6]: ymin, xmin, ymax, xmax, score, class. Padding is all 0."""
    scores, classes = (
        np.asarray(outputs[name], np.float32)[..., None] for name in ("scores", "classes")
    )
    return np.concatenate([np.asarray(outputs["boxes"], np.float32), scores, classes], axis=-1)
