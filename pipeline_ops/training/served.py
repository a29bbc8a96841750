"""A model of images for serving, with the preprocessing of training inside.

`saved_model_export.py` makes a SavedModel of it.

Legend: N images, H W C one image as the model takes it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from pipeline_ops.artifacts.dataset import ENCODED, STRETCH, Geometry, to_grey
from pipeline_ops.models.detection import Head
from pipeline_ops.training.image_limits import MAX_PARALLEL_PIXELS, validate_images

_NUM_PARALLEL_DECODES = 10


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
        """Decodes images, and brings them to the size of the model.

        Raises InvalidArgumentError at run time for images beyond the limits.

        Returns:
          `images`, float32 [N, H, W, C], and `windows`, float32 [N, 4]: the part of each image that
          the model sees, as ymin, xmin, ymax, xmax in fractions of the image. With the bars of
          letterbox, it is larger than the image.
        """
        height, width, _ = self.image_shape
        pixels_N = validate_images(image_bytes, height * width)
        spec = (tf.TensorSpec(self.image_shape, tf.float32), tf.TensorSpec([4], tf.float32))

        def decode(num_parallel: int) -> tuple[tf.Tensor, tf.Tensor]:
            return tf.map_fn(
                self._decode,
                image_bytes,
                parallel_iterations=num_parallel,
                fn_output_signature=spec,
            )

        is_large = tf.reduce_sum(pixels_N) > MAX_PARALLEL_PIXELS  # which waits for the checks
        images, windows = tf.cond(
            is_large, lambda: decode(1), lambda: decode(_NUM_PARALLEL_DECODES)
        )
        return {"images": images, "windows": windows}

    def _decode(self, encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        height, width, channels = self.image_shape
        image_HWC = tf.io.decode_image(encoded, channels=channels, expand_animations=False)
        image_HWC = tf.ensure_shape(image_HWC, [None, None, channels])
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
    """Makes a signature. AutoGraph would only slow down the tracing of TensorFlow operations."""
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

    @property
    def signatures(self) -> dict[str, Callable[..., Any]]:
        """Those of `ServedImages`, and `portable`, from which other formats are exported.

        It is like `images`, but uses only operations that those formats have, too.
        """
        return super().signatures | {"portable": self.portable}

    def _predict_encoded(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns boxes in fractions of the request's images, cut at their edges."""
        decoded = self.decode(image_bytes)
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
