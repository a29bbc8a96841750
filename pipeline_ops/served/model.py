"""The model as it is served: a trained model with its preprocessing and the signatures of
`contract.py`.

Limits on the images that it decodes are a part of it (`decoding.py`).

Legend: N images of a request, S images that the model sees of them, H W C one of these.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from pipeline_ops.contract.dataset import ENCODED
from pipeline_ops.errors import ConfigError
from pipeline_ops.models.boxes import suppress
from pipeline_ops.models.detection import Head
from pipeline_ops.served import contract
from pipeline_ops.served.decoding import check_images
from pipeline_ops.served.preprocessing import Preprocessing, ServedImage, place_boxes
from pipeline_ops.storage.local_files import translate_write_errors

_NUM_DECODES = 10
"""Number of images that are decoded in parallel, unless the request is large."""


class ServedImages(tf.Module, abc.ABC):
    """A model of images with the signatures of `contract.py`.

    `model` is a Keras model, or a tf.Module that is called like one, of images float32 [N, H, W, C]
    in 0..255.
    """

    def __init__(
        self,
        model: tf.Module,
        image_shape: tuple[int, int, int],
        preprocessing: Preprocessing | None = None,
    ):
        super().__init__()
        self.model, self.image_shape = model, image_shape
        # Keras does not show TensorFlow those of layers that draw numbers in a training.
        self._generators = [
            variable.value
            for variable in getattr(model, "non_trainable_variables", ())
            if variable.name == "seed_generator_state"
        ]
        self._preprocessing = preprocessing or Preprocessing()
        batch_shape = (None, *image_shape)
        self.images = _make_signature(self._predict, contract.IMAGES, batch_shape, tf.float32)
        if self.is_prepared_by_client:
            self.serving_default = _make_signature(
                self._predict_given, contract.PREPARED_IMAGES, batch_shape, tf.float32
            )
            return
        self.serving_default = _make_signature(self._predict_encoded, contract.IMAGE_BYTES)
        self.examples = _make_signature(self._predict_examples, contract.EXAMPLES)
        self.decode = _make_signature(self._decode_files, contract.IMAGE_BYTES)

    @property
    def is_prepared_by_client(self) -> bool:
        return bool(self._preprocessing.client_stages)

    @property
    def signatures(self) -> dict[str, Callable[..., Any]]:
        names = [contract.SERVING_DEFAULT, contract.IMAGES]
        if not self.is_prepared_by_client:
            names += [contract.EXAMPLES, contract.DECODE]
        return {name: getattr(self, name) for name in names}

    @abc.abstractmethod
    def _predict(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the outputs for images float32 [N, H, W, C]. Their first axis is N."""

    def _predict_given(self, prepared_images: tf.Tensor) -> dict[str, tf.Tensor]:
        return dict(self.images(prepared_images))

    def _predict_encoded(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._predict_served(self.decode(image_bytes))

    def _predict_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        features = {ENCODED: tf.io.FixedLenFeature([], tf.string)}
        return dict(self.serving_default(tf.io.parse_example(examples, features)[ENCODED]))

    def _predict_served(self, served: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the outputs for what `decode` returns."""
        return dict(self.images(served["images"]))

    def _decode_files(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """Applies all stages to raw files.

        Returns `images`, float32 [S, H, W, C], and `windows`, float32 [S, 4], the parts of the
        upright images that they show, as ymin, xmin, ymax, xmax in fractions. If a stage makes
        several images of one, `num_images`, int64 [N], counts those of each file. Raises
        InvalidArgumentError at run time for files beyond the limits.
        """
        height, width, _ = self.image_shape
        pixels_N = check_images(image_bytes, height * width)
        # Which waits for the checks.
        is_large = tf.reduce_sum(pixels_N) > contract.MAX_PARALLEL_PIXELS
        serve_all = self._map(
            lambda encoded: self._preprocessing.serve_file(encoded, self.image_shape),
            tf.TensorSpec([], tf.string),
        )
        return tf.cond(
            is_large,
            lambda: serve_all(image_bytes, 1),
            lambda: serve_all(image_bytes, _NUM_DECODES),
        )

    def _map(
        self, serve: Callable[[tf.Tensor], ServedImage], item: tf.TensorSpec
    ) -> Callable[[tf.Tensor, int], dict[str, tf.Tensor]]:
        """Returns a function of N items, and of how many are served in parallel."""
        is_split = self._preprocessing.splits
        shapes: list[tuple[int | None, ...]] = [self.image_shape, (4,)]
        spec: list[Any] = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
        if is_split:
            spec = [tf.RaggedTensorSpec((None, *shape), tf.float32, 0) for shape in shapes]

        # A function of its own, so that all calls share one graph.
        @tf.function(input_signature=[item], autograph=False)
        def serve_one(item: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with tf.device("CPU:0"):  # not all of its operations are there for GPUs
                images, windows = serve(item)
                found = tf.cast(images, tf.float32), windows
            return found if is_split else (found[0][0], found[1][0])

        def serve_all(items_N: tf.Tensor, parallel: int) -> dict[str, tf.Tensor]:
            images, windows = tf.map_fn(
                serve_one, items_N, parallel_iterations=parallel, fn_output_signature=tuple(spec)
            )
            if not is_split:
                return {"images": images, "windows": windows}
            counts = {"num_images": images.row_lengths()}
            return {"images": images.values, "windows": windows.values, **counts}

        return serve_all


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

    def __init__(
        self,
        model: tf.Module,
        image_shape: tuple[int, int, int],
        preprocessing: Preprocessing | None = None,
    ):
        if preprocessing and preprocessing.splits and not preprocessing.client_stages:
            raise ConfigError(
                "preprocess.stages: one answer for the parts of an image is for detectors. A "
                "classifier leaves it to its clients: write served: by_client at the stage"
            )
        super().__init__(model, image_shape, preprocessing)

    def _predict(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        probabilities = tf.nn.softmax(self.model(images, training=False))
        return {"probabilities": probabilities, "classes": tf.argmax(probabilities, axis=-1)}


class ServedDetector(ServedImages):
    """A detector for serving.

    `class_numbers` has the number of each class in the label map of the Object Detection API.
    """

    def __init__(
        self,
        model: tf.Module,
        image_shape: tuple[int, int, int],
        head: Head,
        class_numbers: Sequence[int],
        preprocessing: Preprocessing | None = None,
    ):
        super().__init__(model, image_shape, preprocessing)
        self._head, self._class_numbers = head, tuple(class_numbers)
        batch_shape = (None, *image_shape)
        self.portable = _make_signature(
            self._predict_portably, contract.IMAGES, batch_shape, tf.float32
        )
        if not self.is_prepared_by_client:
            self.detection_api = _make_signature(
                self._predict_as_api, "input_tensor", (None, None, None, 3), tf.uint8
            )
            self.__call__ = self.detection_api  # as in a SavedModel of the API

    @property
    def signatures(self) -> dict[str, Callable[..., Any]]:
        """With `portable`, which is `images` in operations that all exported formats have, and
        `detection_api`, which is `serving_default` as the Object Detection API has it.
        """
        names = [contract.PORTABLE]
        names += [] if self.is_prepared_by_client else [contract.DETECTION_API]
        return super().signatures | {name: getattr(self, name) for name in names}

    def _predict_as_api(self, input_tensor: tf.Tensor) -> dict[str, tf.Tensor]:
        """Takes uint8 [N, height, width, 3]. All outputs are float32, classes by their numbers.

        As in the API (`exporter_lib_v2.py`), the class of a padding entry is 1.
        """
        is_grey = self.image_shape[2] == 1
        images = tf.image.rgb_to_grayscale(input_tensor) if is_grey else input_tensor
        serve_all = self._map(
            lambda image: self._preprocessing.serve_image(image, self.image_shape),
            tf.TensorSpec([None, None, self.image_shape[2]], tf.uint8),
        )
        found = self._predict_served(serve_all(images, _NUM_DECODES))
        numbers = tf.gather(tf.constant(self._class_numbers, tf.float32), found["classes"])
        return {
            "detection_boxes": found["boxes"],
            "detection_scores": found["scores"],
            "detection_classes": tf.where(found["scores"] > 0, numbers, 1.0),
            "num_detections": tf.cast(found["num_detections"], tf.float32),
        }

    def _predict_served(self, served: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns boxes in fractions of the request's upright images, cut at their edges."""
        detections = dict(self.images(served["images"]))
        detections |= {"boxes": place_boxes(detections, served["windows"])}
        if (counts_N := served.get("num_images")) is None:
            return detections
        return self._merge_parts(detections, counts_N)

    def _merge_parts(
        self, detections: dict[str, tf.Tensor], counts_N: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Joins the detections in the parts of each image. Of overlapping ones, the best stays."""
        ends_N, limit = tf.cumsum(counts_N), self._head.max_detections

        def merge(part: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
            boxes, scores, classes = (
                tf.reshape(detections[name][part[0] : part[1]], [1, -1, *shape])
                for name, shape in (("boxes", [4]), ("scores", []), ("classes", []))
            )
            found = suppress(boxes, scores, classes, self._head.num_classes, limit)
            return {name: each[0] for name, each in found._asdict().items()}

        spec = {
            "boxes": tf.TensorSpec([limit, 4], tf.float32),
            "scores": tf.TensorSpec([limit], tf.float32),
            "classes": tf.TensorSpec([limit], tf.int64),
            "num_detections": tf.TensorSpec([], tf.int32),
        }
        return dict(tf.map_fn(merge, (ends_N - counts_N, ends_N), fn_output_signature=spec))

    def _predict(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._head.detect(self.model(images, training=False))._asdict()

    def _predict_portably(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._head.detect_portably(self.model(images, training=False))._asdict()


def add_assets(
    served: tf.Module,
    names: Sequence[str],
    preprocessing: Preprocessing,
    folder: Path,
    class_numbers: Sequence[int] = (),
) -> None:
    """Adds class names and preprocessing to the assets of a SavedModel, which copies them from a
    folder.

    A detector has the number of each class, and a label map of the Object Detection API with them.
    """
    lines = "".join(" ".join(name.splitlines()) + "\n" for name in names)
    served.class_names = _write_asset(folder / "class_names.txt", lines)
    served.preprocessing = _write_asset(folder / contract.PREPROCESSING, preprocessing.to_json())
    if class_numbers:
        quoted = (json.dumps(name, ensure_ascii=False) for name in names)
        numbered = zip(class_numbers, quoted, strict=True)
        items = (f"item {{\n  id: {number}\n  name: {name}\n}}\n" for number, name in numbered)
        served.label_map = _write_asset(folder / contract.LABEL_MAP, "".join(items))


def _write_asset(file: Path, text: str) -> tf.saved_model.Asset:
    with translate_write_errors(file):
        file.write_text(text, "utf-8")
    return tf.saved_model.Asset(str(file))
