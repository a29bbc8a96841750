"""A model of images as it is served: what it needs to make of an image what training saw is inside it. Made into a SavedModel by `candidate.py`.

What it answers is said by `served_classifier.py` and `served_detector.py`.

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
    """Its signatures are those of `figures.SAVED_MODEL`.

    Args:
      model: a Keras model, or a tf.Module that is called as one, of images float32 [N, H, W, C] in 0..255.
      image_shape: H, W, C.
    """

    def __init__(self, model: tf.Module, image_shape: tuple[int, int, int]):
        super().__init__()
        self.model, self.image_shape = model, image_shape
        self.images = tf.function(self._answer, [tf.TensorSpec([None, *image_shape], tf.float32, "images")])
        self.serving_default = _of_strings(self._answer_encoded, "image_bytes")
        self.examples = _of_strings(self._answer_examples, "examples")
        self.decode = _of_strings(self._decode_all, "image_bytes")

    @property
    def signatures(self) -> dict[str, Callable]:
        return {"serving_default": self.serving_default, "images": self.images, "examples": self.examples, "decode": self.decode}

    @abc.abstractmethod
    def _answer(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Of float32 [N, H, W, C]; N first in each of the answers."""

    def _answer_encoded(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        return self.images(self.decode(image_bytes)["images"])

    def _answer_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        return self.serving_default(tf.io.parse_example(examples, {ENCODED: tf.io.FixedLenFeature([], tf.string)})[ENCODED])

    def _decode_all(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """Raises InvalidArgumentError, when it runs, for images beyond the limits of `image_limits.py`."""
        height, width, _ = self.image_shape
        encoded_N, pixels_N = checked(image_bytes, height * width)
        spec = tf.TensorSpec(self.image_shape, tf.float32)
        one_by_one, in_parallel = (
            lambda n=n: tf.map_fn(self._decode, encoded_N, parallel_iterations=n, fn_output_signature=spec)
            for n in (1, _DECODED_AT_ONCE))
        return {"images": tf.cond(tf.reduce_sum(pixels_N) > MAX_PIXELS_AT_ONCE, one_by_one, in_parallel)}

    def _decode(self, encoded: tf.Tensor) -> tf.Tensor:
        height, width, channels = self.image_shape
        image_HWC = tf.io.decode_image(encoded, channels=channels, expand_animations=False)
        image_HWC = tf.ensure_shape(image_HWC, [None, None, channels])
        resized = tf.image.resize(image_HWC, (height, width), antialias=True)  # float32; of equal size: the same values
        return tf.ensure_shape(resized, self.image_shape)


def _of_strings(method: Callable[[tf.Tensor], dict[str, tf.Tensor]], name: str) -> tf.types.experimental.PolymorphicFunction:
    """A signature of a batch of strings. Its methods are TensorFlow's operations alone, which AutoGraph would only read, slowly."""
    return tf.function(method, [tf.TensorSpec([None], tf.string, name)], autograph=False)
