"""Initial weights from a SavedModel or a file, matched to the model by name and shape.

The head, the last layer that has weights, may be of another number of classes. It then keeps its
initial weights. Any other mismatch is an error, which names the first weight that does not
match.

Weights are data. Neither the graph of a SavedModel nor the layers in a Keras file are loaded or
run.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.artifacts.manifest import NAME
from pipeline_ops.artifacts.results import WEIGHTS
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.read_errors import make_read_error
from pipeline_ops.training.checkpointing.saved_variables import NamedArrays, read_variables
from pipeline_ops.training.checkpointing.state import Arrays, read_arrays

_REMEDY = "Choose weights of the same model, or set train.model to the model of the weights."


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """All weights of a model, in order, and the names of those that keep their initial values."""

    weights: Arrays
    left_out: tuple[str, ...]


def read_warm_start(
    uri: str, model: keras.Model, initial: Arrays, build: Callable[[], keras.Model]
) -> WarmStart:
    """Reads the weights at a URI for a model.

    Args:
      uri: A SavedModel's folder, the manifest in it, or a file: .npz as training writes it,
        .weights.h5, .h5 or .keras.
      model: The model to train.
      initial: Its weights, for the weights that are left out.
      build: Builds another such model without a strategy.

    Raises:
      ConfigError: A weight does not match.
      DataError: The URI cannot be read.
    """
    path = Path(uri).parent if Path(uri).name == NAME else Path(uri)
    try:
        if path.suffix in (".h5", ".keras"):
            return _read_with_keras(path, build())
        names = [variable.path for variable in model.weights]
        source = (
            read_variables(path, dict(zip(names, initial, strict=True)))
            if path.is_dir()
            else _read_npz(path)
        )
    except (OSError, ValueError, LookupError, RuntimeError, tf.errors.OpError) as error:
        raise make_read_error(
            f"cannot read {path} as weights for train.warm_start", error
        ) from error
    return match_weights(source, names, initial, str(path))


def _read_npz(path: Path) -> NamedArrays:
    if path.suffix != ".npz":
        raise ValueError(
            f"its name must end in {WEIGHTS.rpartition('.')[2]}, h5 or keras, "
            "or it must be a SavedModel's folder"
        )
    return [("", array) for array in read_arrays(path)]


def match_weights(
    source: NamedArrays, names: Sequence[str], initial: Arrays, location: str
) -> WarmStart:
    """Returns the source's weights in the model's order, matched by name or else by order.

    Args:
      source: The source's weights.
      names: The names of the model's weights.
      initial: The model's weights.
      location: The location of the source, for messages.

    Raises:
      ConfigError: The number of weights differs, or a weight has another shape.
    """
    by_name = dict(source)
    if not set(names) <= set(by_name):
        if len(source) != len(names):
            first = next((name for name in names if name not in by_name), names[0])
            raise ConfigError(
                f"train.warm_start: {location} has {len(source)} weights and the model "
                f"{len(names)}. None has the name {first}. {_REMEDY}"
            )
        by_name = dict(zip(names, (array for _, array in source), strict=True))
    head = _find_head(names)
    left_out: tuple[str, ...] = ()
    for name, array in zip(names, initial, strict=True):
        if by_name[name].shape == array.shape:
            continue
        left_out = head  # it has another number of classes
        if name not in head or by_name[name].shape[:-1] != array.shape[:-1]:
            raise ConfigError(
                f"train.warm_start: the weight {name} has the shape {array.shape} in the model and "
                f"{by_name[name].shape} in {location}. {_REMEDY}"
            )
    unchanged = dict(zip(names, initial, strict=True))
    return WarmStart(
        [unchanged[name] if name in left_out else by_name[name] for name in names], left_out
    )


def _find_head(names: Sequence[str]) -> tuple[str, ...]:
    layer = names[-1].rpartition("/")[0]
    return tuple(name for name in names if name.rpartition("/")[0] == layer)


def _read_with_keras(path: Path, model: keras.Model) -> WarmStart:
    """Reads weights with Keras's own reader, because only Keras knows the layout.

    A file without `.weights` in its name is one of `keras.applications`, the weights of a backbone.
    """
    target = model
    if not path.name.endswith((".weights.h5", ".keras")):
        target = next((layer for layer in model.layers if isinstance(layer, keras.Model)), model)
    names, initial = [variable.path for variable in model.weights], model.get_weights()
    unchanged = set(names) - {variable.path for variable in target.weights}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        target.load_weights(path, skip_mismatch=target is model)
    messages = [str(warning.message) for warning in caught]
    if skipped := next((text for text in messages if "could not be loaded" in text), None):
        kernel = names.index(_find_head(names)[0])
        if not skipped.startswith("A total of 1 objects") or not np.array_equal(
            initial[kernel], model.get_weights()[kernel]
        ):
            raise ConfigError(
                f"train.warm_start: {path} does not match the model: "
                f"{' '.join(skipped.split())}. {_REMEDY}"
            )
        unchanged = set(_find_head(names))
    return WarmStart(model.get_weights(), tuple(name for name in names if name in unchanged))
