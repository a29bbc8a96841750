"""Models and losses as users write them, which are undefined for an image of a single colour, or
for a probability of 0."""

from __future__ import annotations

import keras
import tensorflow as tf


def standardized(image_shape, num_classes):
    """Divides each image by its deviation, which is 0 for an image of a single colour."""
    images = keras.Input(image_shape)
    deviations = keras.ops.std(images, axis=(1, 2, 3), keepdims=True)
    means = keras.ops.mean(images, axis=(1, 2, 3), keepdims=True)
    features = keras.layers.Flatten()((images - means) / deviations)
    return keras.Model(images, keras.layers.Dense(num_classes, name="logits")(features))


def contrast_loss(labels, logits):
    """Is not finite for an example whose logits are all 0, as of a black image."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return losses + 1e-6 / tf.stop_gradient(tf.reduce_max(tf.abs(logits), axis=-1))


def unbiased(image_shape, num_classes):
    """Answers 0 for all classes to a black image."""
    images = keras.Input(image_shape)
    features = keras.layers.Flatten()(images / 255.0)
    logits = keras.layers.Dense(num_classes, use_bias=False, name="logits")(features)
    return keras.Model(images, logits)
