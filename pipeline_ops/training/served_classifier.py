"""A classifier as it is served: what it needs to make of an image what training saw is inside it. Made into a SavedModel by `candidate.py`.

Legend: N images, H W C one image as the model takes it, K classes.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from pipeline_ops.contracts.shards import ENCODED


class ServedClassifier(tf.Module):
    """Its signatures are those of `figures.SAVED_MODEL`.

    Args:
      model: a Keras model, or a tf.Module that is called as one: images float32 [N, H, W, C] in 0..255 to logits [N, K].
      image_shape: H, W, C.
    """

    def __init__(self, model: tf.Module, image_shape: tuple[int, int, int]):
        super().__init__()
        self.model, self.image_shape = model, image_shape
        strings = lambda name: [tf.TensorSpec([None], tf.string, name)]  # noqa: E731
        self.serving_default = tf.function(self._classify_encoded, input_signature=strings("image_bytes"))
        self.images = tf.function(self._classify, input_signature=[tf.TensorSpec([None, *image_shape], tf.float32, "images")])
        self.examples = tf.function(self._classify_examples, input_signature=strings("examples"))
        self.decode = tf.function(self._decode_all, input_signature=strings("image_bytes"))

    @property
    def signatures(self) -> dict[str, Callable]:
        return {"serving_default": self.serving_default, "images": self.images, "examples": self.examples, "decode": self.decode}

    def _classify(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        probabilities = tf.nn.softmax(self.model(images, training=False))
        return {"probabilities": probabilities, "classes": tf.argmax(probabilities, axis=-1)}

    def _classify_encoded(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._classify(self._decode_all(image_bytes)["images"])

    def _classify_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._classify_encoded(tf.io.parse_example(examples, {ENCODED: tf.io.FixedLenFeature([], tf.string)})[ENCODED])

    def _decode_all(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"images": tf.map_fn(self._decode, image_bytes, fn_output_signature=tf.TensorSpec(self.image_shape, tf.float32))}

    def _decode(self, encoded: tf.Tensor) -> tf.Tensor:
        height, width, channels = self.image_shape
        image_HWC = tf.io.decode_image(encoded, channels=channels, expand_animations=False)
        image_HWC = tf.ensure_shape(image_HWC, [None, None, channels])
        resized = tf.image.resize(tf.cast(image_HWC, tf.float32), (height, width), antialias=True)  # of equal size: the very same values
        return tf.ensure_shape(resized, self.image_shape)
