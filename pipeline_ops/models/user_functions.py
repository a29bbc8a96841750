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

from pipeline_ops.errors import ConfigError
from pipeline_ops.user_code import modules

_PER_EXAMPLE_HINT = (
    "Write a function of labels and logits that returns a value for each example: "
    "def loss(labels, logits): return "
    "keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)"
)


def load_object(path: str, key: str, folder: Path) -> Any:
    """Returns the object behind a module path. `folder` is that of the config file."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that nothing there hides an installed package
    return modules.load_object(
        path,
        key,
        "Install its package for the job, add its folder to PYTHONPATH, "
        f"or put it next to the config in {folder}",
    )


def load_function(path: str, key: str, folder: Path) -> Callable[..., Any]:
    """Returns the function behind a module path."""
    found: Callable[..., Any] = load_object(path, key, folder)
    if not callable(found):
        raise ConfigError(f"{key}: {path} is a {type(found).__name__}. It must be a function")
    return found


def load_per_example(path: str, key: str, folder: Path) -> Callable[..., Any]:
    """Returns the loss or the metric behind a module path.

    Rejects objects and classes of Keras, and its functions that take probabilities by default.
    """
    found = load_function(path, key, folder)
    kind = found if isinstance(found, type) else type(found)
    if issubclass(kind, (keras.losses.Loss, keras.metrics.Metric)):
        raise ConfigError(
            f"{key}: {path} is {'the class' if kind is found else 'an object of the class'} "
            f"{kind.__name__} of Keras, which reduces a batch to one number. {_PER_EXAMPLE_HINT}"
        )
    is_of_keras = (getattr(found, "__module__", None) or "").partition(".")[0] == "keras"
    if is_of_keras and "from_logits" in inspect.signature(found).parameters:
        raise ConfigError(
            f"{key}: {path} takes probabilities, "
            f"and the outputs of a model are logits. {_PER_EXAMPLE_HINT}"
        )
    return tf.function(found)  # translated by AutoGraph, which is off in the loops
