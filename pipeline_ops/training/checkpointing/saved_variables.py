"""The variables of a SavedModel, read from its checkpoint.

The graph is neither loaded nor run, because a SavedModel is a program, and even its initializers
can write files. Only tensors that fit the model are read, so a shape in a file allocates no memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from pipeline_ops.input.framework_internals import TrackableObjectGraph

NamedArrays = list[tuple[str, np.ndarray]]
"""Weights in order. A name is empty if the file has none."""
_OBJECT_GRAPH, _VALUE = "_CHECKPOINTABLE_OBJECT_GRAPH", "VARIABLE_VALUE"


def read_variables(folder: Path, required: Mapping[str, np.ndarray]) -> NamedArrays:
    """Reads the variables of a SavedModel that a model needs, under the model's names.

    Args:
      folder: The folder of the SavedModel.
      required: The model's weights by name. Only their shapes and types count.

    Returns:
      A variable for each required name that the SavedModel has. The first part of a name is the
      name of the whole model, and may differ in the SavedModel. A variable of another shape comes
      with zeros instead of its values.

    Raises:
      ValueError, tf.errors.OpError: There is no readable checkpoint.
    """
    reader = tf.train.load_checkpoint(str(folder / "variables" / "variables"))
    keys = _read_checkpoint_keys(reader.get_tensor(_OBJECT_GRAPH))
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    found: NamedArrays = []
    for name, stored in _match_names(required, keys).items():
        key, like = keys[stored], required[name]
        if key not in shapes or types[key].as_numpy_dtype != like.dtype:
            continue
        has_same_shape = tuple(shapes[key]) == like.shape
        value = (
            reader.get_tensor(key)
            if has_same_shape
            else np.broadcast_to(like.dtype.type(0), shapes[key])
        )
        found.append((name, value))
    return found


def _read_checkpoint_keys(serialized: bytes) -> dict[str, str]:
    """Returns the checkpoint key of each variable, by the variable's own name."""
    try:
        graph = TrackableObjectGraph.FromString(serialized)
    except Exception as error:  # protobuf's own DecodeError, which is not imported here
        raise ValueError(f"its table of variables cannot be parsed: {error}") from None
    keys: dict[str, str] = {}
    for attribute in (each for node in graph.nodes for each in node.attributes):
        if attribute.name == _VALUE:
            keys.setdefault(attribute.full_name, attribute.checkpoint_key)
    return keys


def _match_names(required: Iterable[str], stored: Iterable[str]) -> dict[str, str]:
    """Maps each required name to the stored name, where the match is unambiguous."""
    stored, required = set(stored), list(required)
    if stored.issuperset(required):
        return {name: name for name in required}
    by_suffix: dict[str, list[str]] = {}
    for name in sorted(stored):
        by_suffix.setdefault(name.partition("/")[2], []).append(name)
    found = {name: by_suffix.get(name.partition("/")[2], []) for name in required}
    return {name: names[0] for name, names in found.items() if len(names) == 1}
