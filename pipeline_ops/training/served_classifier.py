"""A classifier for serving: a probability for each class, and the most probable class."""

from __future__ import annotations

import tensorflow as tf

from pipeline_ops.training.served_images import ServedImages


class ServedClassifier(ServedImages):
    """A classifier whose model returns logits [N, K] of K classes."""

    def _predict(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        probabilities = tf.nn.softmax(self.model(images, training=False))
        return {"probabilities": probabilities, "classes": tf.argmax(probabilities, axis=-1)}
