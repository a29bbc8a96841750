"""The variables of a SavedModel, read from its checkpoint.

The graph is neither loaded nor run, because a SavedModel is a program, and even its initializers
can write files. Only tensors that fit the model are read, so a shape in a file allocates no memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

Named = list[tuple[str, np.ndarray]]
"""Weights in order. A name is empty if the file has none."""
_OBJECT_GRAPH, _VALUE = "_CHECKPOINTABLE_OBJECT_GRAPH", "VARIABLE_VALUE"


def read_variables(folder: Path, wanted: Mapping[str, np.ndarray]) -> Named:
    """The variables of a SavedModel that a model needs, under the model's names.

    Args:
      folder: The folder of the SavedModel.
      wanted: The model's weights by name. Only their shapes and types count.

    Returns:
      A variable for each wanted name that the SavedModel has. The first part of a name is the name
      of the whole model, and may differ in the SavedModel. A variable of another shape comes with
      zeros instead of its values.

    Raises:
      ValueError, tf.errors.OpError: There is no readable checkpoint.
    """
    reader = tf.train.load_checkpoint(str(folder / "variables" / "variables"))
    keys = _keys_by_name(reader.get_tensor(_OBJECT_GRAPH))
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    found: Named = []
    for name, stored in _match(wanted, keys).items():
        key, like = keys[stored], wanted[name]
        if key not in shapes or types[key].as_numpy_dtype != like.dtype:
            continue
        fits = tuple(shapes[key]) == like.shape
        value = reader.get_tensor(key) if fits else np.broadcast_to(like.dtype.type(0), shapes[key])
        found.append((name, value))
    return found


def _keys_by_name(serialized: bytes) -> dict[str, str]:
    """The checkpoint key of each variable, by the variable's own name."""
    try:
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(serialized)
    except Exception as error:  # protobuf's own DecodeError, which is not imported here
        raise ValueError(f"its table of variables can't be parsed: {error}") from None
    keys: dict[str, str] = {}
    for attribute in (each for node in graph.nodes for each in node.attributes):
        if attribute.name == _VALUE:
            keys.setdefault(attribute.full_name, attribute.checkpoint_key)
    return keys


def _match(wanted: Iterable[str], stored: Iterable[str]) -> dict[str, str]:
    """Maps each wanted name to the stored name, where the match is unambiguous."""
    stored, wanted = set(stored), list(wanted)
    if stored.issuperset(wanted):
        return {name: name for name in wanted}
    by_rest: dict[str, list[str]] = {}
    for name in sorted(stored):
        by_rest.setdefault(name.partition("/")[2], []).append(name)
    found = {name: by_rest.get(name.partition("/")[2], []) for name in wanted}
    return {name: names[0] for name, names in found.items() if len(names) == 1}
