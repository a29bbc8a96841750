"""The SavedModel of the trained weights, with serving signatures and reference outputs.

A separate process, forked after the gang has finished, builds the model again without a strategy.
So the gang's devices and addresses stay out of the SavedModel.

The preprocessing of training is part of the model, and so are limits on the images that it decodes:
a file of 250 kB can hold a gigabyte of pixels. The size of each image is read from its header, and
a request with an image that is too large is rejected before anything is decoded. TensorFlow Serving
therefore has the limits, too. The formats are JPEG and PNG.

Legend: N images, J of them JPEG, P of them PNG, H W C one image as the model takes it.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline_ops.artifacts.dataset import ENCODED, STRETCH, Geometry, to_grey
from pipeline_ops.artifacts.results import (
    REFERENCE_EXAMPLES,
    REFERENCE_OUTPUTS,
    SAVED_MODEL,
    WEIGHTS,
)
from pipeline_ops.config.train import Train
from pipeline_ops.input.reading import open_split, read_batches
from pipeline_ops.input.saved_model_client import pack_detections
from pipeline_ops.input.streaming import raise_read_errors
from pipeline_ops.jobs.gang_protocol import TRAINED, CandidateSpec
from pipeline_ops.jobs.local_inputs import (
    HostDataset,
    fetch_files,
    open_host_cache,
    open_host_dataset,
    store_files,
)
from pipeline_ops.jobs.request import read_request
from pipeline_ops.models import build_model, make_head
from pipeline_ops.models.detection import Head
from pipeline_ops.storage.local_files import remove_own_folder, translate_write_errors
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.training.checkpoints import read_arrays, write_arrays

_NUM_REFERENCE_EXAMPLES = 64
_NUM_DECODES = 10
"""Number of images that are decoded in parallel, unless the request is large."""
MAX_IMAGE_PIXELS = 64_000_000
"""Limit of pixels of one image. The model shrinks images, so a smaller one serves as well."""
MAX_REQUEST_PIXELS = 1_000_000_000
"""Limit of pixels of all images of a request together, which bounds the time of a request."""
MAX_PARALLEL_PIXELS = 64_000_000
"""Limit of pixels in parallel. Images of larger requests are decoded one by one to save memory."""
MAX_JPEG_SCANS = 64
"""Limit of scans of a JPEG. Each is a pass over all pixels. Encoders write a dozen at most."""
MAX_PNG_TEXTS = 16
"""Limit of compressed texts in a PNG. Each can take 8 MB of memory without being visible."""

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_PNG_HEADER_BYTES = len(_PNG) + 8
"""Width and height follow as integers of four bytes each."""


def export_saved_model(spec: CandidateSpec) -> None:
    """Writes SavedModel, weights and reference outputs into the artifact of the train job."""
    request = read_request(open_path(spec.request))
    config, folder, work = Train.model_validate(request.config), Path(spec.folder), Path(spec.work)
    if spec.source:
        remove_own_folder(folder)
        for each in (folder, work):
            each.mkdir(parents=True, exist_ok=True)
        fetch_files(open_root(spec.source), work, only=[TRAINED])
    uri, cache = request.inputs["preprocess"].uri, open_host_cache(config.input)
    dataset = open_host_dataset(uri, config.input, cache, print)
    image_shape, num_classes = dataset.figures.image_shape, len(dataset.figures.class_names)
    config_folder, geometry = Path(request.config_file).parent, dataset.figures.geometry
    model = build_model(config, image_shape, num_classes, config_folder, for_training=False)
    weights = read_arrays(work / TRAINED)
    model.set_weights(weights)
    write_arrays(folder / WEIGHTS, weights)
    served: ServedImages
    if dataset.figures.task == "detection":
        head = make_head(config, image_shape, num_classes)
        served = ServedDetector(model, image_shape, head, geometry)
    else:
        served = ServedClassifier(model, image_shape, geometry)
    # On a GPU, TF32 would round the references to ten bits, and exported formats would differ.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    _write_references(dataset, served, folder)
    is_detector = isinstance(served, ServedDetector)
    add_class_names(served, dataset.figures.class_names, work, with_label_map=is_detector)
    tf.saved_model.save(served, str(folder / SAVED_MODEL), signatures=served.signatures)
    if spec.target:
        files = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
        store_files(folder, map(str, files), open_root(spec.target))


def _write_references(dataset: HostDataset, served: ServedImages, folder: Path) -> None:
    """Writes real test examples, and the outputs that the published model must give for them."""
    tests = read_batches(open_split(dataset, "test"), _NUM_REFERENCE_EXAMPLES)
    with raise_read_errors():
        examples: Sequence[bytes] = next(tests.take(1).as_numpy_iterator(), [])
    with tf.io.TFRecordWriter(str(folder / REFERENCE_EXAMPLES)) as writer:
        for example in examples:
            writer.write(example)
    features = tf.io.parse_example(examples, {ENCODED: tf.io.FixedLenFeature([], tf.string)})
    outputs = served.serving_default(features[ENCODED])
    is_detector = isinstance(served, ServedDetector)
    packed = pack_detections(outputs) if is_detector else outputs["probabilities"].numpy()
    with translate_write_errors(folder / REFERENCE_OUTPUTS):
        np.save(folder / REFERENCE_OUTPUTS, packed)


def add_class_names(
    served: tf.Module, names: Sequence[str], folder: Path, with_label_map: bool
) -> None:
    """Adds the class names to the assets of a SavedModel, which copies them from a folder.

    `label_map.pbtxt` is a label map of the Object Detection API, which counts classes from 1.
    """
    lines = "".join(" ".join(name.splitlines()) + "\n" for name in names)
    served.class_names = _write_asset(folder / "class_names.txt", lines)
    if with_label_map:
        quoted = [json.dumps(name, ensure_ascii=False) for name in names]
        items = (f"item {{\n  id: {i}\n  name: {each}\n}}\n" for i, each in enumerate(quoted, 1))
        served.label_map = _write_asset(folder / "label_map.pbtxt", "".join(items))


def _write_asset(file: Path, text: str) -> tf.saved_model.Asset:
    with translate_write_errors(file):
        file.write_text(text, "utf-8")
    return tf.saved_model.Asset(str(file))


class ServedImages(tf.Module, abc.ABC):
    """A model of images with the signatures of `SAVED_MODEL` in `artifacts/results.py`.

    `model` is a Keras model, or a tf.Module that is called like one, of images float32 [N, H, W, C]
    in 0..255. `geometry` says how an image of another size becomes H, W.
    """

    def __init__(
        self, model: tf.Module, image_shape: tuple[int, int, int], geometry: Geometry = STRETCH
    ):
        super().__init__()
        self.model, self.image_shape, self._geometry = model, image_shape, geometry
        batch_shape = (None, *image_shape)
        self.images = _make_signature(self._predict, "images", batch_shape, tf.float32)
        self.serving_default = _make_signature(self._predict_encoded, "image_bytes")
        self.examples = _make_signature(self._predict_examples, "examples")
        self.decode = _make_signature(self._decode_all, "image_bytes")

    @property
    def signatures(self) -> dict[str, Callable[..., Any]]:
        names = ("serving_default", "images", "examples", "decode")
        return {name: getattr(self, name) for name in names}

    @abc.abstractmethod
    def _predict(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the outputs for images float32 [N, H, W, C]. Their first axis is N."""

    def _predict_encoded(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        return dict(self.images(self.decode(image_bytes)["images"]))

    def _predict_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        features = {ENCODED: tf.io.FixedLenFeature([], tf.string)}
        return dict(self.serving_default(tf.io.parse_example(examples, features)[ENCODED]))

    def _decode_all(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """Decodes images, and brings them to the size of the model: `images`, float32 [N, H, W, C].

        `windows`, float32 [N, 4], are the parts that the model sees, as ymin, xmin, ymax, xmax in
        fractions of each image. With the bars of letterbox, a window is larger than the image.
        Raises InvalidArgumentError at run time for images beyond the limits.
        """
        height, width, _ = self.image_shape
        pixels_N = validate_images(image_bytes, height * width)
        is_large = tf.reduce_sum(pixels_N) > MAX_PARALLEL_PIXELS  # which waits for the checks
        return tf.cond(
            is_large,
            lambda: self._map(self._decode, image_bytes, 1),
            lambda: self._map(self._decode, image_bytes, _NUM_DECODES),
        )

    def _map(
        self, fit: Callable[[tf.Tensor], Any], images: tf.Tensor, parallel: int
    ) -> dict[str, tf.Tensor]:
        spec = (tf.TensorSpec(self.image_shape, tf.float32), tf.TensorSpec([4], tf.float32))
        found = tf.map_fn(fit, images, parallel_iterations=parallel, fn_output_signature=spec)
        return dict(zip(("images", "windows"), found, strict=True))

    def _decode(self, encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        channels = self.image_shape[2]
        image_HWC = tf.io.decode_image(encoded, channels=channels, expand_animations=False)
        return self._fit(tf.ensure_shape(image_HWC, [None, None, channels]))

    def _fit(self, image_HWC: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Brings an image to the size of the model. Returns its window, too."""
        height, width, _ = self.image_shape
        size = tf.constant((height, width), tf.float64)
        shape = tf.cast(tf.shape(image_HWC)[:2], tf.float64)
        match self._geometry.mode:
            case "letterbox":
                image, window = self._letterbox(image_HWC, shape, size)
            case "crop":
                image, window = self._crop(image_HWC, shape, size)
            case _:
                image, window = _resize(image_HWC, (height, width)), tf.constant([0.0, 0, 1, 1])
        return tf.ensure_shape(image, self.image_shape), tf.cast(window, tf.float32)

    def _letterbox(
        self, image_HWC: tf.Tensor, shape: tf.Tensor, size: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Does what the stage `resize` does, and returns the window."""
        inner = tf.round(shape * tf.reduce_min(size / shape))
        inner = tf.clip_by_value(inner, tf.ones_like(inner), size)
        before = (size - inner) // 2
        color = self._geometry.pad_color
        bars = [to_grey(color)] if self.image_shape[2] == 1 else color
        bars_C = tf.constant(bars, tf.float32)
        resized = _resize(image_HWC, tf.cast(inner, tf.int32)) - bars_C
        margins = tf.cast(tf.stack([before, size - inner - before], axis=1), tf.int32)
        image = tf.pad(resized, tf.concat([margins, [[0, 0]]], axis=0)) + bars_C
        return image, tf.concat([-before / inner, (size - before) / inner], axis=0)

    def _crop(
        self, image_HWC: tf.Tensor, shape: tf.Tensor, size: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Does what the stage `resize` does, and returns the window."""
        part = tf.round(shape[::-1] * size / size[::-1])
        part = tf.clip_by_value(part, tf.ones_like(part), shape)
        before = (shape - part) // 2
        (top, left), (height, width) = (
            tf.unstack(tf.cast(pair, tf.int32)) for pair in (before, part)
        )
        image = image_HWC[top : top + height, left : left + width]
        window = tf.concat([before / shape, (before + part) / shape], axis=0)
        return _resize(image, self.image_shape[:2]), window


def _resize(image_HWC: tf.Tensor, size: Any) -> tf.Tensor:
    """Returns float32. An image of equal size keeps its values."""
    return tf.image.resize(image_HWC, size, antialias=True)


def _make_signature(
    method: Callable[[tf.Tensor], dict[str, tf.Tensor]],
    name: str,
    shape: Sequence[int | None] = (None,),
    dtype: tf.DType = tf.string,
) -> tf.types.experimental.PolymorphicFunction:
    # AutoGraph would only slow down the tracing of TensorFlow operations.
    return tf.function(method, [tf.TensorSpec(shape, dtype, name)], autograph=False)


class ServedClassifier(ServedImages):
    """A classifier whose model returns logits [N, K] of K classes."""

    def _predict(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        probabilities = tf.nn.softmax(self.model(images, training=False))
        return {"probabilities": probabilities, "classes": tf.argmax(probabilities, axis=-1)}


class ServedDetector(ServedImages):
    """A detector for serving."""

    def __init__(
        self,
        model: tf.Module,
        image_shape: tuple[int, int, int],
        head: Head,
        geometry: Geometry = STRETCH,
    ):
        super().__init__(model, image_shape, geometry)
        self._head = head
        batch_shape = (None, *image_shape)
        self.portable = _make_signature(self._predict_portably, "images", batch_shape, tf.float32)
        self.detection_api = _make_signature(
            self._predict_as_api, "input_tensor", (None, None, None, 3), tf.uint8
        )
        self.__call__ = self.detection_api  # as in a SavedModel of the API

    @property
    def signatures(self) -> dict[str, Callable[..., Any]]:
        """With `portable`, which is `images` in operations that all exported formats have, and
        `detection_api`, which is `serving_default` as the Object Detection API has it.
        """
        return super().signatures | {"portable": self.portable, "detection_api": self.detection_api}

    def _predict_encoded(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._predict_decoded(self.decode(image_bytes))

    def _predict_as_api(self, input_tensor: tf.Tensor) -> dict[str, tf.Tensor]:
        """Takes uint8 [N, height, width, 3]. All outputs are float32, and classes count from 1.

        As in the API (`exporter_lib_v2.py`), the class of a padding entry is 1.
        """
        is_grey = self.image_shape[2] == 1
        images = tf.image.rgb_to_grayscale(input_tensor) if is_grey else input_tensor
        found = self._predict_decoded(self._map(self._fit, images, _NUM_DECODES))
        return {
            "detection_boxes": found["boxes"],
            "detection_scores": found["scores"],
            "detection_classes": tf.cast(found["classes"] + 1, tf.float32),
            "num_detections": tf.cast(found["num_detections"], tf.float32),
        }

    def _predict_decoded(self, decoded: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns boxes in fractions of the request's images, cut at their edges."""
        detections = dict(self.images(decoded["images"]))
        if self._geometry.mode == "stretch":
            return detections
        low_N12, high_N12 = tf.split(decoded["windows"][:, None], 2, axis=-1)
        extent = tf.concat([high_N12 - low_N12] * 2, axis=-1)
        boxes = tf.concat([low_N12] * 2, axis=-1) + detections["boxes"] * extent
        is_padding = detections["scores"][..., None] <= 0
        return detections | {"boxes": tf.where(is_padding, 0.0, tf.clip_by_value(boxes, 0.0, 1.0))}

    def _predict(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._head.detect(self.model(images, training=False))._asdict()

    def _predict_portably(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._head.detect_portably(self.model(images, training=False))._asdict()


def validate_images(encoded_N: tf.Tensor, model_pixels: int) -> tf.Tensor:
    """Returns the number of pixels of each image, int64 [N], once all may be decoded.

    `model_pixels` is the size of the model's input. That number of pixels of each image does not
    count towards the limit of a request. Raises InvalidArgumentError at run time if one image or
    all images together are too large, or a format is unknown.
    """
    heads_N = tf.strings.substr(encoded_N + b"\0" * _PNG_HEADER_BYTES, 0, _PNG_HEADER_BYTES)
    is_jpeg_N = tf.strings.substr(heads_N, 0, len(_JPEG)) == _JPEG
    is_png_N = tf.strings.substr(heads_N, 0, len(_PNG)) == _PNG
    jpegs_J, pngs_P = tf.boolean_mask(encoded_N, is_jpeg_N), tf.boolean_mask(encoded_N, is_png_N)
    sides_N2 = tf.io.decode_raw(
        tf.strings.substr(heads_N, len(_PNG), 8), tf.int32, little_endian=False
    )
    # A side from 2**31 on is negative here.
    sides_N2 = tf.where(sides_N2 < 0, tf.int32.max, sides_N2)
    png_pixels_N = tf.where(is_png_N, tf.reduce_prod(tf.cast(sides_N2, tf.int64), axis=1), 0)
    jpeg_pixels_J = tf.map_fn(
        lambda jpeg: tf.reduce_prod(tf.image.extract_jpeg_shape(jpeg, tf.int64)[:2]),
        jpegs_J,
        fn_output_signature=tf.TensorSpec([], tf.int64),
    )
    pixels_N = tf.tensor_scatter_nd_update(png_pixels_N, tf.where(is_jpeg_N), jpeg_pixels_J)
    largest = tf.reduce_max(tf.pad(pixels_N, [[0, 1]]))
    total = tf.reduce_sum(tf.maximum(pixels_N - model_pixels, 0))
    has_few_scans = _has_at_most(MAX_JPEG_SCANS, b"\xff\xda", jpegs_J)
    has_few_texts = [_has_at_most(MAX_PNG_TEXTS, kind, pngs_P) for kind in (b"zTXt", b"iTXt")]
    checks = [
        _require(
            tf.reduce_all(is_jpeg_N | is_png_N),
            "Unknown image file format. JPEG or PNG required, with a whole header.",
        ),
        _require(
            largest <= MAX_IMAGE_PIXELS,
            f"An image has {{}} pixels, at most {MAX_IMAGE_PIXELS} are allowed. "
            "Send a smaller one.",
            largest,
        ),
        _require(
            total <= MAX_REQUEST_PIXELS,
            "The images of the request have {} pixels, at most "
            f"{MAX_REQUEST_PIXELS} are allowed. Send fewer at once.",
            total,
        ),
        _require(
            has_few_scans,
            f"A JPEG has more than {MAX_JPEG_SCANS} scans. Save it as a baseline JPEG.",
        ),
        _require(
            tf.reduce_all(has_few_texts),
            f"A PNG has more than {MAX_PNG_TEXTS} texts. Save it without.",
        ),
    ]
    with tf.control_dependencies(checks):
        return tf.identity(pixels_N)


def _has_at_most(limit: int, marker: bytes, encoded_N: tf.Tensor) -> tf.Tensor:
    # The raw operation, because a ragged tensor would take many more operations.
    parts = tf.raw_ops.StringSplitV2(input=encoded_N, sep=marker, maxsplit=limit + 1)
    return parts.shape[1] - 1 <= limit


def _require(condition: tf.Tensor, message: str, *values: tf.Tensor) -> tf.Operation:
    return tf.debugging.Assert(
        condition, [tf.strings.format(message, values) if values else message]
    )
