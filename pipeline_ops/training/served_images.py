"""A model of images for serving, with the preprocessing of training inside.

`saved_model_export.py` makes a SavedModel of it. `served_classifier.py` and `served_detector.py`
define its outputs.

Legend: N images, H W C one image as the model takes it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from pipeline_ops.artifacts.dataset import ENCODED
from pipeline_ops.training.image_limits import MAX_PARALLEL_PIXELS, validate_images

_NUM_PARALLEL_DECODES = 10


class ServedImages(tf.Module, abc.ABC):
    """A model of images with the signatures of `SAVED_MODEL` in `artifacts/results.py`.

    Args:
      model: A Keras model, or a tf.Module that is called like one, of images float32 [N, H, W, C]
        in 0..255.
      image_shape: H, W, C.
    """

    def __init__(self, model: tf.Module, image_shape: tuple[int, int, int]):
        super().__init__()
        self.model, self.image_shape = model, image_shape
        self.images = tf.function(
            self._predict, [tf.TensorSpec([None, *image_shape], tf.float32, "images")]
        )
        self.serving_default = _make_string_signature(self._predict_encoded, "image_bytes")
        self.examples = _make_string_signature(self._predict_examples, "examples")
        self.decode = _make_string_signature(self._decode_all, "image_bytes")

    @property
    def signatures(self) -> dict[str, Callable[..., Any]]:
        return {
            "serving_default": self.serving_default,
            "images": self.images,
            "examples": self.examples,
            "decode": self.decode,
        }

    @abc.abstractmethod
    def _predict(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the outputs for images float32 [N, H, W, C]. Their first axis is N."""

    def _predict_encoded(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        return dict(self.images(self.decode(image_bytes)["images"]))

    def _predict_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        features = {ENCODED: tf.io.FixedLenFeature([], tf.string)}
        return dict(self.serving_default(tf.io.parse_example(examples, features)[ENCODED]))

    def _decode_all(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """Decodes images. Raises InvalidArgumentError at run time for those beyond the limits."""
        height, width, _ = self.image_shape
        encoded_N, pixels_N = validate_images(image_bytes, height * width)
        spec = tf.TensorSpec(self.image_shape, tf.float32)

        def decode(num_parallel: int) -> tf.Tensor:
            return tf.map_fn(
                self._decode,
                encoded_N,
                parallel_iterations=num_parallel,
                fn_output_signature=spec,
            )

        is_large = tf.reduce_sum(pixels_N) > MAX_PARALLEL_PIXELS
        return {
            "images": tf.cond(is_large, lambda: decode(1), lambda: decode(_NUM_PARALLEL_DECODES))
        }

    def _decode(self, encoded: tf.Tensor) -> tf.Tensor:
        height, width, channels = self.image_shape
        image_HWC = tf.io.decode_image(encoded, channels=channels, expand_animations=False)
        image_HWC = tf.ensure_shape(image_HWC, [None, None, channels])
        # float32. An image of equal size keeps its values.
        resized = tf.image.resize(image_HWC, (height, width), antialias=True)
        return tf.ensure_shape(resized, self.image_shape)


def _make_string_signature(
    method: Callable[[tf.Tensor], dict[str, tf.Tensor]], name: str
) -> tf.types.experimental.PolymorphicFunction:
    """Makes a signature for a batch of strings.

    The methods contain TensorFlow operations only, and AutoGraph would only slow down the tracing.
    """
    return tf.function(method, [tf.TensorSpec([None], tf.string, name)], autograph=False)
