"""A user's functions: models, losses and metrics, named as `my_package.my_module:function`.

Their module is found like any Python module, or next to the config file. `user_code/models.py`
determines which of their code belongs to a fingerprint.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from pipeline_ops.config.yaml_source import suggest_name
from pipeline_ops.errors import ConfigError
from pipeline_ops.user_code.modules import import_module

_PER_EXAMPLE_HINT = (
    "Write a function of labels and logits that returns a value for each example: "
    "def loss(labels, logits): return "
    "keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)"
)


def load_function(path: str, key: str, folder: Path) -> Callable[..., Any]:
    """Returns the function behind a module path.

    Raises:
      ConfigError: as `load_object`, or the object cannot be called.
    """
    found: Callable[..., Any] = load_object(path, key, folder)
    if not callable(found):
        raise ConfigError(f"{key}: {path} is a {type(found).__name__}. It must be a function")
    return found


def load_per_example(path: str, key: str, folder: Path) -> Callable[..., Any]:
    """Returns the loss or the metric behind a module path.

    Raises:
      ConfigError: as `load_function`. An object or a class of Keras is rejected, and so is a
          function of Keras that takes probabilities by default.
    """
    found = load_function(path, key, folder)
    kind = found if isinstance(found, type) else type(found)
    if issubclass(kind, (keras.losses.Loss, keras.metrics.Metric)):
        raise ConfigError(
            f"{key}: {path} is {_describe(found)} of Keras, "
            f"which reduces a batch to one number. {_PER_EXAMPLE_HINT}"
        )
    is_of_keras = (getattr(found, "__module__", None) or "").partition(".")[0] == "keras"
    if is_of_keras and "from_logits" in inspect.signature(found).parameters:
        raise ConfigError(
            f"{key}: {path} takes probabilities, "
            f"and the outputs of a model are logits. {_PER_EXAMPLE_HINT}"
        )
    return tf.function(found)  # translated by AutoGraph, which is off in the loops


def load_object(path: str, key: str, folder: Path) -> Any:
    """Returns the object behind a module path.

    Args:
      path: `module:name`.
      key: the key of the config, for messages.
      folder: the folder of the config file.

    Raises:
      ConfigError: the module cannot be imported, or has no such name.
    """
    module_name, _, attribute = path.partition(":")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that nothing there hides an installed package
    try:
        module = import_module(
            module_name,
            "Install its package for the job, add its folder to PYTHONPATH, "
            f"or put it next to the config in {folder}",
        )
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error
    if not hasattr(module, attribute):
        known = [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", None) == module_name
        ]
        raise ConfigError(
            f"{key}: the module {module_name} has no function {attribute!r}; "
            f"{suggest_name(attribute, known)}"
        )
    return getattr(module, attribute)


def _describe(found: Any) -> str:
    return (
        f"the class {found.__name__}"
        if isinstance(found, type)
        else f"an object of the class {type(found).__name__}"
    )
