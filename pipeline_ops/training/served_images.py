"""A model of images for serving, with the preprocessing of training inside.

`saved_model_export.py` makes a SavedModel of it. `served_classifier.py` and `served_detector.py`
define its outputs.

Legend: N images, H W C one image as the model takes it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

import tensorflow as tf

from pipeline_ops.artifacts.dataset import ENCODED
from pipeline_ops.training.image_limits import MAX_PIXELS_AT_ONCE, checked

_DECODED_AT_ONCE = 10


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
            self._answer, [tf.TensorSpec([None, *image_shape], tf.float32, "images")]
        )
        self.serving_default = _of_strings(self._answer_encoded, "image_bytes")
        self.examples = _of_strings(self._answer_examples, "examples")
        self.decode = _of_strings(self._decode_all, "image_bytes")

    @property
    def signatures(self) -> dict[str, Callable]:
        return {
            "serving_default": self.serving_default,
            "images": self.images,
            "examples": self.examples,
            "decode": self.decode,
        }

    @abc.abstractmethod
    def _answer(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """The outputs for images float32 [N, H, W, C]. Each output begins with the axis N."""

    def _answer_encoded(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        return self.images(self.decode(image_bytes)["images"])

    def _answer_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        return self.serving_default(
            tf.io.parse_example(examples, {ENCODED: tf.io.FixedLenFeature([], tf.string)})[ENCODED]
        )

    def _decode_all(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """Decodes images. Raises InvalidArgumentError at run time for those beyond the limits."""
        height, width, _ = self.image_shape
        encoded_N, pixels_N = checked(image_bytes, height * width)
        spec = tf.TensorSpec(self.image_shape, tf.float32)
        one_by_one, in_parallel = (
            lambda n=n: tf.map_fn(
                self._decode, encoded_N, parallel_iterations=n, fn_output_signature=spec
            )
            for n in (1, _DECODED_AT_ONCE)
        )
        return {
            "images": tf.cond(tf.reduce_sum(pixels_N) > MAX_PIXELS_AT_ONCE, one_by_one, in_parallel)
        }

    def _decode(self, encoded: tf.Tensor) -> tf.Tensor:
        height, width, channels = self.image_shape
        image_HWC = tf.io.decode_image(encoded, channels=channels, expand_animations=False)
        image_HWC = tf.ensure_shape(image_HWC, [None, None, channels])
        resized = tf.image.resize(
            image_HWC, (height, width), antialias=True
        )  # float32; an image of equal size keeps its values
        return tf.ensure_shape(resized, self.image_shape)


def _of_strings(
    method: Callable[[tf.Tensor], dict[str, tf.Tensor]], name: str
) -> tf.types.experimental.PolymorphicFunction:
    """A signature for a batch of strings.

    The methods contain TensorFlow operations only, and AutoGraph would only slow down the tracing.
    """
    return tf.function(method, [tf.TensorSpec([None], tf.string, name)], autograph=False)
