"""A model of images as it is served: what it needs to make of an image what training saw is inside it. Made into a SavedModel by `candidate.py`.

What it answers is said by `served_classifier.py` and `served_detector.py`.

Legend: N images, H W C one image as the model takes it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

import tensorflow as tf

from pipeline_ops.contracts.shards import ENCODED


class ServedImages(tf.Module, abc.ABC):
    """Its signatures are those of `figures.SAVED_MODEL`.

    Args:
      model: a Keras model, or a tf.Module that is called as one, of images float32 [N, H, W, C] in 0..255.
      image_shape: H, W, C.
    """

    def __init__(self, model: tf.Module, image_shape: tuple[int, int, int]):
        super().__init__()
        self.model, self.image_shape = model, image_shape
        strings = lambda name: [tf.TensorSpec([None], tf.string, name)]  # noqa: E731
        self.serving_default = tf.function(self._answer_encoded, input_signature=strings("image_bytes"))
        self.images = tf.function(self._answer, input_signature=[tf.TensorSpec([None, *image_shape], tf.float32, "images")])
        self.examples = tf.function(self._answer_examples, input_signature=strings("examples"))
        self.decode = tf.function(self._decode_all, input_signature=strings("image_bytes"))

    @property
    def signatures(self) -> dict[str, Callable]:
        return {"serving_default": self.serving_default, "images": self.images, "examples": self.examples, "decode": self.decode}

    @abc.abstractmethod
    def _answer(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Of float32 [N, H, W, C]; N first in each of the answers."""

    def _answer_encoded(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._answer(self._decode_all(image_bytes)["images"])

    def _answer_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._answer_encoded(tf.io.parse_example(examples, {ENCODED: tf.io.FixedLenFeature([], tf.string)})[ENCODED])

    def _decode_all(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"images": tf.map_fn(self._decode, image_bytes, fn_output_signature=tf.TensorSpec(self.image_shape, tf.float32))}

    def _decode(self, encoded: tf.Tensor) -> tf.Tensor:
        height, width, channels = self.image_shape
        image_HWC = tf.io.decode_image(encoded, channels=channels, expand_animations=False)
        image_HWC = tf.ensure_shape(image_HWC, [None, None, channels])
        resized = tf.image.resize(tf.cast(image_HWC, tf.float32), (height, width), antialias=True)  # of equal size: the very same values
        return tf.ensure_shape(resized, self.image_shape)
