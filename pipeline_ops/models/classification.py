"""Image classification: one class for each image, and the check of a classifier's outputs.

A classifier returns one logit for each class, as the loss and the served model take it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.artifacts.dataset import ENCODED, LABEL
from pipeline_ops.errors import ConfigError
from pipeline_ops.models.task import BatchSums, decode_images

PerExample = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""A user's own loss or metric: takes labels int64 [b] and logits float32 [b, classes], and returns
float32 [b], a value for each example.
"""

_FEATURES = {
    ENCODED: tf.io.FixedLenFeature([], tf.string),
    LABEL: tf.io.FixedLenFeature([], tf.int64),
}

_FORBIDDEN_ACTIVATIONS = ("softmax", "sigmoid")
_PASS_THROUGH_LAYERS = (keras.layers.Activation, keras.layers.Reshape, keras.layers.Flatten)
"""Layers that are passed over when they have no activation of their own."""


class Classification:
    """The task of a model that returns logits [b, classes].

    Args:
      class_weights: the factor of each class's loss in training, by index. None weights all classes
          alike.
      label_smoothing: the share of each label that is spread over all classes in training.
      loss: the function that replaces the cross-entropy.
      metrics: metrics in addition to accuracy, by name.
    """

    counts_examples = True
    num_counts = 0
    evaluation_batch_size = 256

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        class_weights: list[float] | None = None,
        label_smoothing: float = 0.0,
        loss: PerExample | None = None,
        metrics: Mapping[str, PerExample] | None = None,
    ):
        self._image_shape = image_shape
        self._class_weights, self._label_smoothing = class_weights, label_smoothing
        self._loss, self._metrics = loss, dict(metrics or {})
        self.metrics = ("accuracy", *self._metrics)

    def parse(self, serialized_b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns images uint8 [b, H, W, C] and labels int64 [b]. Parsing a whole batch costs half
        as much as parsing one by one.
        """
        features = tf.io.parse_example(serialized_b, _FEATURES)
        return decode_images(features[ENCODED], self._image_shape), features[LABEL]

    def compute_batch_sums(
        self, outputs: tf.Tensor, labels: tf.Tensor, training: bool
    ) -> BatchSums:
        """Returns the sums of loss, accuracy and the user's metrics, and the number of examples."""
        logits = tf.cast(outputs, tf.float32)
        correct = tf.cast(tf.equal(tf.argmax(logits, axis=-1), labels), tf.float32)
        metrics = [
            correct,
            *(compute_per_example(name, fn, labels, logits) for name, fn in self._metrics.items()),
        ]
        return BatchSums(
            tf.reduce_sum(self._compute_losses(logits, labels, training)),
            tf.stack([tf.reduce_sum(values) for values in metrics]),
            tf.cast(tf.size(labels), tf.float32),
        )

    def compute_from_counts(self, counts: np.ndarray) -> dict[str, float]:
        return {}

    def _compute_losses(self, logits: tf.Tensor, labels: tf.Tensor, training: bool) -> tf.Tensor:
        if self._loss is not None:
            return compute_per_example("train.loss", self._loss, labels, logits)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        if training and self._label_smoothing:
            # The cross-entropy against all classes alike.
            uniform = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
            losses = (1 - self._label_smoothing) * losses + self._label_smoothing * uniform
        if training and self._class_weights is not None:
            losses *= tf.gather(tf.constant(self._class_weights, tf.float32), labels)
        return losses


def compute_per_example(
    name: str, function: PerExample, labels: tf.Tensor, logits: tf.Tensor
) -> tf.Tensor:
    """Returns the values of a user's function.

    Rejects a mean over the batch. It would train, but with a different result for each number of
    workers.
    """
    values = tf.convert_to_tensor(function(labels, logits))
    if values.shape.rank != 1:
        raise ConfigError(
            f"{name}: must return a value for each example, a tensor of rank 1, "
            f"got shape {values.shape}. Do not average over the batch"
        )
    return tf.cast(values, tf.float32)


def validate_outputs(model: keras.Model, name: str, num_classes: int) -> None:
    """Checks the outputs of a built classifier as far as they are visible without a computation.

    `name` is the value of `train.model`, for messages.
    """
    outputs = getattr(model, "outputs", None)
    if not outputs:  # a subclassed model; `validate_logits` checks its values
        return
    if len(outputs) > 1:
        raise ConfigError(
            f"train.model: {name} has {len(outputs)} outputs, and a classifier has one: the logits"
        )
    _validate_shape(tuple(outputs[0].shape), name, num_classes)
    if found := _find_activation(model, outputs[0]):
        raise _make_activation_error(name, *found)


def validate_logits(values: np.ndarray, name: str, num_classes: int) -> None:
    """Checks the outputs for a batch of images that differ."""
    _validate_shape(values.shape, name, num_classes)
    if not np.isfinite(values).all():
        raise ConfigError(
            f"train.model: {name} has outputs that are not finite, with new weights and images of "
            "random pixels. Check its layers and its initial weights"
        )
    if (values >= 0).all() and np.allclose(values.sum(axis=1), 1, atol=1e-3):
        raise _make_activation_error(name, "softmax", "the outputs of every image sum to 1")


def _validate_shape(shape: tuple[int | None, ...], name: str, num_classes: int) -> None:
    if len(shape) != 2 or shape[1] != num_classes:
        raise ConfigError(
            f"train.model: {name} has outputs of shape {[*shape[1:]]} for each image, and the "
            f"data set has {num_classes} classes. "
            "End the model with keras.layers.Dense(num_classes)"
        )


def _make_activation_error(name: str, activation: str, where: str) -> ConfigError:
    return ConfigError(
        f"train.model: {name} ends in {activation} ({where}), and the loss and the served model "
        f"apply softmax to its outputs. Return logits: remove activation={activation!r}"
    )


def _find_activation(model: keras.Model, output: Any) -> tuple[str, str] | None:
    """Returns the squashing activation that produces an output, and the layer that has it.

    Finds no layer that is called more than once. Operations are layers and functions of
    `keras.ops`. A sequential model has layers only.
    """
    for layer in reversed(getattr(model, "operations", model.layers)):
        if getattr(layer, "output", None) is not output:
            continue
        activation = getattr(layer, "activation", layer)
        kind = getattr(activation, "__name__", type(activation).__name__).lower()
        if kind in _FORBIDDEN_ACTIVATIONS:
            return kind, f"layer {layer.name!r}"
        if isinstance(layer, keras.Model) and len(getattr(layer, "outputs", None) or ()) == 1:
            return _find_activation(layer, layer.outputs[0])
        if isinstance(layer, _PASS_THROUGH_LAYERS):
            return _find_activation(model, layer.input)
    return None
