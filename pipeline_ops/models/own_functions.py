"""The author's own losses and metrics, and those of Keras, as functions of labels and outputs.

They get the outputs of the model, which are probabilities if it ends in softmax. A function of
Keras with an argument `from_logits` gets logits instead, which are more exact and fit every model.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.errors import ConfigError
from pipeline_ops.models.classification import (
    TAKES_LOGITS,
    Classification,
    PerExample,
    compute_per_example,
)
from pipeline_ops.user_code.opened_files import explain_unnamed_files

_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_PER_EXAMPLE_HINT = (
    "Write a function of labels and outputs that returns a value for each example: "
    "def loss(labels, outputs): return "
    "keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)"
)
_TOLERANCE = 1e-4


def make_per_example(
    found: Any, where: str, arguments: Mapping[str, Any], folder: Path
) -> Callable[..., Any]:
    """Returns a loss or a metric as a function of labels and outputs.

    Args:
      found: a function, or a class of Keras for losses or metrics.
      where: key and path, for messages.
      arguments: the arguments of the class, or further arguments of the function.
      folder: the folder of the author's modules.
    """
    if str(getattr(found, "__module__", "")).startswith("keras.") and hasattr(found, "__name__"):
        return _adapt(found, where, arguments)
    kind = found if isinstance(found, type) else type(found)
    if isinstance(found, type) and issubclass(found, keras.losses.Loss):
        found, arguments = found(**arguments), {}
        found.reduction = "none"
    elif issubclass(kind, (keras.losses.Loss, keras.metrics.Metric)):
        raise ConfigError(
            f"{where} is {'the class' if kind is found else 'an object of the class'} "
            f"{kind.__name__} of Keras, which reduces a batch to one number. {_PER_EXAMPLE_HINT}"
        )
    compute = tf.function(functools.partial(found, **arguments))  # AutoGraph is off in the loops

    @functools.wraps(found)
    def compute_watched(labels: tf.Tensor, outputs: tf.Tensor) -> Any:
        with explain_unnamed_files(folder, where):
            if isinstance(found, keras.losses.Loss) and takes_one_hot(found, outputs.shape[-1]):
                labels = tf.one_hot(tf.reshape(labels, [-1]), outputs.shape[-1])
            return compute(labels, outputs)

    return compute_watched


def _adapt(found: Any, where: str, arguments: Mapping[str, Any]) -> Callable[..., Any]:
    """Returns a loss or a metric of Keras as a function of integer labels.

    Functions whose names begin with Sparse take integers. All others take one-hot labels.
    """
    name = _WORDS.sub("_", found.__name__).lower()
    options = {**arguments}
    if isinstance(found, type) and issubclass(found, keras.metrics.Metric):
        found = getattr(keras.metrics, name, None)
        if found is None:
            raise ConfigError(
                f"{where} is not a mean over examples. The gate has such metrics, for example "
                "macro_f1, macro_recall and top_3_accuracy: name one in best_checkpoint.monitor."
            )
    takes_logits = "from_logits" in inspect.signature(found).parameters
    if takes_logits and not options.setdefault("from_logits", True):
        raise ConfigError(f"{where} always gets logits. Remove from_logits: false.")
    try:
        if isinstance(found, type):
            compute = found(reduction="none", **options)
        else:
            inspect.signature(found).bind(None, None, **options)
            compute = functools.partial(found, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}. Correct its arguments.") from error

    def compute_values(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        if not name.startswith("sparse_"):
            size = outputs.shape[-1]
            flat = tf.reshape(labels, [-1])
            labels = tf.one_hot(flat, size) if size > 1 else tf.cast(flat[:, None], tf.float32)
        return compute(labels, outputs)

    setattr(compute_values, TAKES_LOGITS, takes_logits)
    return compute_values


def takes_one_hot(loss: Any, num_outputs: int) -> bool:
    """Returns whether a compiled loss takes one-hot labels.

    A loss of Keras does if the model has several outputs, unless its name begins with Sparse. An
    own loss does if it fails for integers.
    """
    loss = keras.losses.get(loss)
    if loss is None or num_outputs == 1:
        return False
    kind = type(loss) if isinstance(loss, keras.losses.Loss) else loss
    if kind.__module__.startswith("keras."):
        return not kind.__name__.lower().startswith("sparse")
    labels = np.arange(num_outputs + 1) % num_outputs
    one_hot = np.eye(num_outputs, dtype=np.float32)[labels]
    outputs = tf.nn.softmax(one_hot)
    for value, is_one_hot in ((labels, False), (one_hot, True)):
        with contextlib.suppress(Exception):
            loss(tf.constant(value), outputs)
            return is_one_hot
    return False


def check_loss(task: Classification, loss: PerExample, where: str) -> None:
    """Raises ConfigError if a loss takes logits for probabilities, or probabilities for logits.

    The loss is called with random outputs. A loss of logits does not change if a number is added to
    all logits. With a single logit, its values for the two labels differ by the logit. A loss of
    probabilities normalizes them by their sum, clips them to 0..1, or fails for other numbers.
    `where` names the loss.
    """
    is_probability = task.end is not None and task.end.is_probability
    num_outputs = 1 if task.end and task.end.num_outputs == 1 else task.num_classes
    draw = np.random.default_rng(1)
    raw = tf.constant(draw.normal(0, 3, (16, num_outputs)), tf.float32)
    inside = tf.sigmoid(raw) if num_outputs == 1 else tf.nn.softmax(raw)
    shape = (16, 1) if num_outputs == 1 else (16,)

    def function(outputs: Any) -> list[tf.Tensor]:
        labels = (tf.fill(shape, tf.constant(label, tf.int64)) for label in (0, 1))
        return [compute_per_example(where, loss, each, outputs) for each in labels]

    def are_equal(one: Any, other: Any) -> bool:
        return np.allclose(one, other, _TOLERANCE, _TOLERANCE)

    values = np.asarray(function(inside))
    if num_outputs == 1:
        takes_logits = are_equal(values[1] - values[0], -inside[:, 0])
    else:
        takes_logits = are_equal(function(inside + 3), values)
    if is_probability and takes_logits:
        raise ConfigError(
            f"{where} applies a softmax or sigmoid itself, and train.model ends in one already, so "
            "it would be applied twice. Leave one of them out: from_logits=False in the loss, or "
            "the activation at the end of the model."
        )
    if is_probability or takes_logits:
        return
    outside = np.asarray(function(raw))
    positive = tf.abs(raw)
    takes_probabilities = (
        not np.isfinite(outside).all()
        or are_equal(function(tf.clip_by_value(raw, 0, 1)), outside)
        or (num_outputs > 1 and are_equal(function(2 * positive), function(positive)))
    )
    if takes_probabilities:
        raise ConfigError(
            f"{where} takes probabilities, and train.model returns logits. End the model with "
            "softmax, or give the loss from_logits=True or tf.nn.softmax(outputs)."
        )
