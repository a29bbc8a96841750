"""Initial weights from a SavedModel or a file, matched to the model by name and shape.

The head, the last layer that has weights, may be of another number of classes. It then keeps its
initial weights. Any other mismatch is an error, which names the first weight that does not
match.

Weights are data. Neither the graph of a SavedModel nor the layers in a Keras file are loaded or
run.
"""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.artifacts.manifest import NAME
from pipeline_ops.artifacts.results import WEIGHTS
from pipeline_ops.errors import ConfigError
from pipeline_ops.input.framework_internals import TrackableObjectGraph
from pipeline_ops.storage.read_errors import make_read_error
from pipeline_ops.training.checkpoints import Arrays, read_arrays

NamedArrays = list[tuple[str, np.ndarray]]
"""Weights in order. A name is empty if the file has none."""
_OBJECT_GRAPH, _VALUE = "_CHECKPOINTABLE_OBJECT_GRAPH", "VARIABLE_VALUE"
_REMEDY = "Choose weights of the same model, or set train.model to the model of the weights."


class WarmStart(NamedTuple):
    """All weights of a model, in order, and the names of those that keep their initial values."""

    weights: Arrays
    left_out: tuple[str, ...]


def read_warm_start(
    uri: str, model: keras.Model, initial: Arrays, build: Callable[[], keras.Model]
) -> WarmStart:
    """Reads the weights at a URI for a model, whose own weights are `initial`.

    The URI is a SavedModel's folder, the manifest in it, or a file: .npz as training writes it,
    .weights.h5, .h5 or .keras. `build` builds another such model without a strategy. Raises
    ConfigError if a weight does not match, and DataError if the URI cannot be read.
    """
    path = Path(uri).parent if Path(uri).name == NAME else Path(uri)
    try:
        if path.suffix in (".h5", ".keras"):
            return _read_with_keras(path, build())
        names = [variable.path for variable in model.weights]
        if path.is_dir():
            source = _read_variables(path, dict(zip(names, initial, strict=True)))
        elif path.suffix == ".npz":
            source = [("", array) for array in read_arrays(path)]
        else:
            raise ValueError(
                f"its name must end in {WEIGHTS.rpartition('.')[2]}, h5 or keras, "
                "or it must be a SavedModel's folder"
            )
    except (OSError, ValueError, LookupError, RuntimeError, tf.errors.OpError) as error:
        raise make_read_error(
            f"cannot read {path} as weights for train.warm_start", error
        ) from error
    return match_weights(source, names, initial, str(path))


def match_weights(
    source: NamedArrays, names: Sequence[str], initial: Arrays, location: str
) -> WarmStart:
    """Returns the source's weights in the model's order, matched by name or else by order."""
    by_name, own = dict(source), dict(zip(names, initial, strict=True))
    if not own.keys() <= by_name.keys():
        if len(source) != len(names):
            first = next((name for name in names if name not in by_name), names[0])
            raise ConfigError(
                f"train.warm_start: {location} has {len(source)} weights and the model "
                f"{len(names)}. None has the name {first}. {_REMEDY}"
            )
        by_name = {name: array for name, (_, array) in zip(names, source, strict=True)}
    head = _find_head(names)
    misfits = [name for name in names if by_name[name].shape != own[name].shape]
    for name in misfits:
        if name not in head or by_name[name].shape[:-1] != own[name].shape[:-1]:
            raise ConfigError(
                f"train.warm_start: the weight {name} has the shape {own[name].shape} in the model "
                f"and {by_name[name].shape} in {location}. {_REMEDY}"
            )
    left_out = head if misfits else ()  # it has another number of classes
    return WarmStart([own[name] if name in left_out else by_name[name] for name in names], left_out)


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


def _read_variables(folder: Path, required: Mapping[str, np.ndarray]) -> NamedArrays:
    """Reads the variables of a SavedModel that a model needs, under the model's names.

    The graph is neither loaded nor run, because a SavedModel is a program, and even its
    initializers can write files. Only tensors with the shape and the type of the required array are
    read, so a shape in a file allocates no memory. Others come as zeros that take no memory.
    """
    reader = tf.train.load_checkpoint(str(folder / "variables" / "variables"))
    keys = _read_checkpoint_keys(reader.get_tensor(_OBJECT_GRAPH))
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    found: NamedArrays = []
    for name, stored in _match_names(required, keys).items():
        key, like = keys[stored], required[name]
        if key in shapes and types[key].as_numpy_dtype == like.dtype:
            fits = tuple(shapes[key]) == like.shape
            zeros = np.broadcast_to(like.dtype.type(0), shapes[key])
            found.append((name, reader.get_tensor(key) if fits else zeros))
    return found


def _read_checkpoint_keys(serialized: bytes) -> dict[str, str]:
    """Returns the checkpoint key of each variable, by the variable's own name."""
    try:
        graph = TrackableObjectGraph.FromString(serialized)
    except Exception as error:  # protobuf's own DecodeError, which is not imported here
        raise ValueError(f"its table of variables cannot be parsed: {error}") from None
    attributes = [each for node in graph.nodes for each in node.attributes if each.name == _VALUE]
    # The first one of a name counts.
    return {each.full_name: each.checkpoint_key for each in reversed(attributes)}


def _match_names(required: Iterable[str], stored: Iterable[str]) -> dict[str, str]:
    """Maps each required name to the stored name, where the match is unambiguous.

    The first part of a name is that of the whole model, and may differ in the SavedModel.
    """
    stored, required = set(stored), list(required)
    if stored.issuperset(required):
        return {name: name for name in required}
    by_suffix = collections.defaultdict(list)
    for name in stored:
        by_suffix[name.partition("/")[2]].append(name)
    found = {name: by_suffix[name.partition("/")[2]] for name in required}
    return {name: names[0] for name, names in found.items() if len(names) == 1}
