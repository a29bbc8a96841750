"""Models and tasks.

`config/model_catalogue.py` lists the names. Each module that it lists has
`build(image_shape, num_classes, **parameters)`.

A model takes float32 images in 0..255, shape [batch, height, width, channels], scales them itself,
and returns logits [batch, num_classes]. The same holds for a user's own function. A detector
returns the input of its head, and its module also has
`make_head(image_shape, num_classes, **parameters)`.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import keras

from pipeline_ops.config.model_catalogue import CATALOGUE, get_model_task, is_user_function
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.input.framework_internals import list_layers
from pipeline_ops.models.classification import validate_outputs
from pipeline_ops.models.detection import Head
from pipeline_ops.models.user_functions import load_function

_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def build_model(
    config: Train,
    image_shape: tuple[int, int, int],
    num_classes: int,
    folder: Path,
    for_training: bool,
) -> keras.Model:
    """Returns the model of a config, with new weights.

    Args:
      folder: the folder of the config file. It may contain a user's module.
      for_training: computes with the config's precision. Otherwise the model computes in float32,
          as the served model does.
    """
    keras.config.set_dtype_policy(_POLICIES[config.precision] if for_training else "float32")
    parameters = config.model_parameters
    try:
        if is_user_function(config.model):
            build = load_function(config.model, "train.model", folder)
        else:
            entry = CATALOGUE[config.model]
            build = importlib.import_module(f"{__name__}.{entry.module}").build
            parameters = {**entry.arguments, **parameters}
        model = build(image_shape, num_classes, **parameters)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"train.model: cannot build {config.model} for images of shape {image_shape} and "
            f"{num_classes} classes: {error}"
        ) from error
    if not getattr(model, "built", False):
        raise ConfigError(
            f"train.model: {config.model} must return a Keras model that is built, got {model!r}. "
            "Begin it with keras.Input(image_shape)"
        )
    if get_model_task(config.model) == "classification":
        validate_outputs(model, config.model, num_classes)
    if config.synchronized_batch_normalization and for_training:
        _synchronize_batch_normalization(config, model)
    return model


def make_head(config: Train, image_shape: tuple[int, int, int], num_classes: int) -> Head:
    """Returns the head that interprets the outputs of the config's detector."""
    module = importlib.import_module(f"{__name__}.{CATALOGUE[config.model].module}")
    head: Head = module.make_head(image_shape, num_classes, **config.model_parameters)
    return head


def _synchronize_batch_normalization(config: Train, model: keras.Model) -> None:
    """Makes every batch normalisation take its statistics over all replicas.

    The layers read this attribute in each call.
    """
    normalizations = [
        layer for layer in list_layers(model) if isinstance(layer, keras.layers.BatchNormalization)
    ]
    if not normalizations:
        raise ConfigError(
            f"train.synchronized_batch_normalization: the model {config.model} has no "
            "keras.layers.BatchNormalization. Remove the option or choose another model"
        )
    for layer in normalizations:
        layer.synchronized = True
