"""The outputs of a classifier: one logit for each class, as the loss and the served model take."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from pipeline_ops.errors import ConfigError
from pipeline_ops.input.framework_internals import find_producer

_FORBIDDEN_ACTIVATIONS = ("softmax", "sigmoid")
_PASS_THROUGH_LAYERS = (keras.layers.Activation, keras.layers.Reshape, keras.layers.Flatten)
"""Layers that are passed over when they have no activation of their own."""


def validate_outputs(model: keras.Model, name: str, num_classes: int) -> None:
    """Checks the properties that are visible without a computation.

    Args:
      model: a classifier that is built.
      name: the value of `train.model`, for messages.
      num_classes: the number of classes in the data set.

    Raises:
      ConfigError: the outputs are not one logit for each class.
    """
    outputs = getattr(model, "outputs", None)
    if not outputs:  # a subclassed model; `validate_logits` checks its values
        return
    if len(outputs) > 1:
        raise ConfigError(
            f"train.model: {name} has {len(outputs)} outputs, and a classifier has one: the logits"
        )
    validate_shape(tuple(outputs[0].shape), name, num_classes)
    if found := _find_activation(outputs[0]):
        raise _make_activation_error(name, *found)


def validate_shape(shape: tuple[int | None, ...], name: str, num_classes: int) -> None:
    """Raises ConfigError if the shape, batch first, is not that of a logit for each class."""
    if len(shape) != 2 or shape[1] != num_classes:
        raise ConfigError(
            f"train.model: {name} has outputs of shape {[*shape[1:]]} for each image, and the "
            f"data set has {num_classes} classes. "
            "End the model with keras.layers.Dense(num_classes)"
        )


def validate_logits(values: np.ndarray, name: str, num_classes: int) -> None:
    """Checks the outputs for a batch of images that differ. Raises ConfigError."""
    validate_shape(values.shape, name, num_classes)
    if not np.isfinite(values).all():
        raise ConfigError(
            f"train.model: {name} has outputs that are not finite, with new weights and images of "
            "random pixels. Check its layers and its initial weights"
        )
    if (values >= 0).all() and np.allclose(values.sum(axis=1), 1, atol=1e-3):
        raise _make_activation_error(name, "softmax", "the outputs of every image sum to 1")


def _make_activation_error(name: str, activation: str, where: str) -> ConfigError:
    return ConfigError(
        f"train.model: {name} ends in {activation} ({where}), and the loss and the served model "
        f"apply softmax to its outputs. Return logits: remove activation={activation!r}"
    )


def _find_activation(output: Any) -> tuple[str, str] | None:
    """Returns the squashing activation that produces an output, and the layer that has it."""
    layer, inputs = find_producer(output)
    activation = getattr(layer, "activation", None)
    name = (
        getattr(activation, "__name__", type(activation).__name__)
        if activation is not None
        else type(layer).__name__
    )
    if name.lower() in _FORBIDDEN_ACTIVATIONS:
        return name.lower(), f"layer {layer.name!r}"
    if isinstance(layer, keras.Model) and len(getattr(layer, "outputs", None) or ()) == 1:
        return _find_activation(layer.outputs[0])
    if isinstance(layer, _PASS_THROUGH_LAYERS):
        return _find_activation(inputs[0])
    return None
