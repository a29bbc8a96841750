"""Initial weights from a SavedModel or a file, matched to the model by name and shape.

The head, the last layer that has weights, may be of another number of classes. It then keeps its
initial weights. So do other weights that do not match, if they have at most half of the parameters.
Otherwise it is an error, which names the layers that match and those that do not.

Weights are data. Neither the graph of a SavedModel nor the layers in a Keras file are loaded or
run.
"""

from __future__ import annotations

import collections
import contextlib
import io
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.contract.manifest import NAME
from pipeline_ops.contract.results import WEIGHTS
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.input.framework_internals import TrackableObjectGraph
from pipeline_ops.raw_data.limits import check_expansion
from pipeline_ops.registry.weights import find_checkpoint
from pipeline_ops.storage.read_errors import make_read_error
from pipeline_ops.training.weight_files import Arrays, number_paths, read_named_arrays
from pipeline_ops.training.zoo_checkpoints import Backbone, convert_weight, match_backbone

NamedArrays = list[tuple[str, np.ndarray]]
"""Weights in order. A name is empty if the file has none."""
_OBJECT_GRAPH, _VALUE = "_CHECKPOINTABLE_OBJECT_GRAPH", "VARIABLE_VALUE"
_FEATURE_EXTRACTOR = "/_feature_extractor"
"""A part of the keys in a SavedModel of the Object Detection API."""
_READ_ERRORS = (
    *(OSError, ValueError, LookupError, RuntimeError, EOFError, TypeError),
    *(zipfile.BadZipFile, zlib.error, tf.errors.OpError),
)
"""What the readers of NumPy, Keras, h5py and TensorFlow raise for a damaged file."""
_NO_MEMORY = "OOM when allocating"
"""A part of TensorFlow's message. Its error has the type of too many open files, too."""
_KERAS_WEIGHTS = "model.weights.h5"
_MAX_LAYERS = 8
_MAX_TOP_LAYERS = 3
"""The most layers with weights in the top of a network of `keras.applications`, those of VGG."""
_REMEDY = "Choose weights of the same model, or set train.model to the model of the weights."


class WarmStart(NamedTuple):
    """All weights of a model, in order, and the names of those that keep their initial values.

    `taken` describes the part that was taken, if weights besides the head were left out.
    """

    weights: Arrays
    left_out: tuple[str, ...]
    taken: str = ""


def read_warm_start(
    uri: str, model: keras.Model, initial: Arrays, build: Callable[[], keras.Model]
) -> WarmStart:
    """Reads the weights at a URI for a model, whose own weights are `initial`.

    The URI is a SavedModel's folder, the manifest in it, a checkpoint of the TensorFlow Object
    Detection API, or a file: .npz as training writes it, .weights.h5, .h5 or .keras. `build` builds
    another such model without a strategy. Raises ConfigError if less than half of the model
    matches, and DataError if the URI cannot be read.
    """
    path = Path(uri).parent if Path(uri).name == NAME else Path(uri)
    names, outside = number_paths(each.path for each in model.weights), list[str]()
    checkpoint = find_checkpoint(path)
    try:
        if path.suffix in (".h5", ".keras"):
            _check_keras_file(path)
            source, outside = _read_with_keras(path, build(), names)
        elif checkpoint or path.is_dir():
            required = dict(zip(names, initial, strict=True))
            prefix = checkpoint or path / "variables" / "variables"
            source, outside = _read_variables(prefix, required, is_own=not checkpoint)
        elif path.suffix == ".npz":
            stored = read_named_arrays(path, {array.shape for array in initial})
            by_path = _match_names(names, [name for name, _ in stored if name])
            source = stored
            if by_path:
                arrays = dict(stored)
                source = [(name, arrays[found]) for name, found in by_path.items()]
        else:
            raise ValueError(
                f"its name must end in {WEIGHTS.rpartition('.')[2]}, h5 or keras, "
                "or it must be a SavedModel's folder or a checkpoint"
            )
    except (MemoryError, *_READ_ERRORS) as error:
        if isinstance(error, MemoryError) or _NO_MEMORY in str(error):
            raise MachineError(
                f"the process has no memory left for the weights in {path}",
                "Give the training more memory, or choose a smaller file for train.warm_start.",
            ) from error
        raise make_read_error(
            f"cannot read {path} as weights for train.warm_start", error
        ) from error
    return match_weights(source, names, initial, str(path), outside)


def match_weights(
    source: NamedArrays,
    names: Sequence[str],
    initial: Arrays,
    location: str,
    outside: Collection[str] = (),
) -> WarmStart:
    """Returns the source's weights in the model's order, matched by name or else by order.

    `outside` has the names of weights that the source is not meant to have, as those of a backbone
    lack all other layers.
    """
    if not any(name for name, _ in source) and source:
        if len(source) != len(names):
            raise ConfigError(
                f"train.warm_start: {location} has {len(source)} weights and the model "
                f"{len(names)}. None has the name {names[0]}. {_REMEDY}"
            )
        source = [(name, array) for name, (_, array) in zip(names, source, strict=True)]
    found, own = dict(source), dict(zip(names, initial, strict=True))
    taken = {name for name in names if name in found and found[name].shape == own[name].shape}
    head = _find_head(names)
    if not taken.issuperset(head):  # it has another number of classes
        taken.difference_update(head)
    body = [name for name in names if name not in head and name not in outside]
    missing, text = [name for name in body if name not in taken], ""
    if missing:
        total, lacking = (sum(own[name].size for name in each) for each in (body, missing))
        layers, first = _list_layers(name for name in body if name in taken), missing[0]
        text = f"{1 - lacking / total:.0%} of the parameters besides the head: {layers}"
        if 2 * lacking > total:
            problem = f"has the shape {found[first].shape}" if first in found else "is not there"
            raise ConfigError(
                f"train.warm_start: {location} fits less than half of the model, {text}. It does "
                f"not fit {_list_layers(missing)}. The first weight, {first} of the shape "
                f"{own[first].shape}, {problem}. {_REMEDY}"
            )
    weights = [found[name] if name in taken else own[name] for name in names]
    return WarmStart(weights, tuple(name for name in names if name not in taken), text)


def _list_layers(names: Iterable[str]) -> str:
    """Lists the layers of some weights, in order, at most a few."""
    layers = [*dict.fromkeys(name.rpartition("/")[0] or name for name in names)]
    more = len(layers) - _MAX_LAYERS
    text = ", ".join(layers[:_MAX_LAYERS]) or "no layer"
    return f"{text} and {more} more layers" if more > 0 else text


def _find_head(names: Sequence[str]) -> tuple[str, ...]:
    layer = names[-1].rpartition("/")[0]
    return tuple(name for name in names if name.rpartition("/")[0] == layer)


def _check_keras_file(path: Path) -> None:
    """Raises TooLarge: the arrays of an HDF5 or Keras file cannot come from a file of its size.

    Keras itself has no limit below 4 GiB for an array, and none for the old layout.
    """
    num_bytes = path.stat().st_size
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(open(path, "rb"))
        if path.suffix == ".keras":
            archive = stack.enter_context(zipfile.ZipFile(file))
            expanded = sum(member.file_size for member in archive.infolist())
            check_expansion(path, num_bytes, expanded)
            if _KERAS_WEIGHTS not in archive.namelist():
                return
            file = io.BytesIO(archive.read(_KERAS_WEIGHTS))
        sizes = list[int]()

        def add(_: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                sizes.append((item.size or 0) * item.dtype.itemsize)

        stack.enter_context(h5py.File(file, "r")).visititems(add)
        check_expansion(path, num_bytes, sum(sizes))


def _read_with_keras(
    path: Path, model: keras.Model, names: Sequence[str]
) -> tuple[NamedArrays, list[str]]:
    """Reads weights into a model with Keras's own readers, because only Keras knows the layouts.

    A file without `.weights` in its name is one of `keras.applications`, the weights of a backbone,
    also if it has a top. Others are of the model, or of a model inside of it if the whole takes
    nothing. Returns the weights that were in the file, and the names of those outside of the model
    that took them. `names` are the model's, because Keras names the layers of a second one anew.
    Raises ConfigError if nothing fits.
    """
    models = [layer for layer in model.layers if isinstance(layer, keras.Model)]
    inner = [each for each in models if each.weights]  # not those of augmentation alone
    is_of_keras_3 = path.name.endswith((".weights.h5", ".keras"))
    marks = [_make_mark(variable) for variable in model.weights]
    for target in (model, *inner) if is_of_keras_3 else (*inner, model)[:1]:
        model.set_weights(marks)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about each weight that does not match
            if is_of_keras_3:
                target.load_weights(path, skip_mismatch=True)
            else:
                _load_in_order(path, target)
        source = [
            (name, value)
            for name, value, mark in zip(names, model.get_weights(), marks, strict=True)
            if not np.array_equal(value, mark, equal_nan=value.dtype.kind == "f")
        ]
        if source:
            break
    if is_of_keras_3 and not source:
        raise ConfigError(
            f"train.warm_start: {path} fits no layer of the model. The format keeps layers by "
            "their types and order, and not by name, so it is for the same model, or for one that "
            "has the saved one as a layer. Save a SavedModel instead, which has the names: "
            "model.export(FOLDER)."
        )
    inside = set(map(id, target.weights))
    pairs = zip(names, model.weights, strict=True)
    return source, [name for name, variable in pairs if id(variable) not in inside]


def _make_mark(variable: keras.Variable) -> np.ndarray:
    kind = np.dtype(variable.dtype)
    mark = np.nan if kind.kind == "f" else np.iinfo(kind).min
    return np.full(variable.shape, mark, kind)


def _load_in_order(path: Path, model: keras.Model) -> None:
    """Loads a file in Keras's old layout, which matches layers by order.

    It must have as many layers as the model, or those of a top besides. Other layers stand in for
    these. Raises ValueError.
    """
    problems, end = [], model.outputs[-1]
    for number in range(_MAX_TOP_LAYERS + 1):
        extended = keras.Model(model.inputs, [*model.outputs, end]) if number else model
        try:
            extended.load_weights(path, skip_mismatch=True)
            return
        except ValueError as error:
            problems.append(error)
            end = keras.layers.Dense(1)(end)
    raise problems[0]


def _read_variables(
    prefix: Path, required: Mapping[str, np.ndarray], is_own: bool
) -> tuple[NamedArrays, list[str]]:
    """Reads the variables of a checkpoint that a model needs, under the model's names.

    `is_own` is true for that of a SavedModel, unless it is one of the Object Detection API. Returns
    also the names of weights that the checkpoint is not meant to have.

    The graph is neither loaded nor run, because a SavedModel is a program, and even its
    initializers can write files. Only tensors with the shape and the type of the required array are
    read, so a shape in a file allocates no memory. Others come as zeros that take no memory.
    """
    reader = tf.train.load_checkpoint(str(prefix))
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    keys = {key: key for key in shapes}  # as TF1 wrote them
    if _OBJECT_GRAPH in shapes:
        keys = _read_checkpoint_keys(reader.get_tensor(_OBJECT_GRAPH))
    is_own = is_own and not any(_FEATURE_EXTRACTOR in key for key in keys.values())
    if is_own:
        backbone = Backbone(_match_names(required, keys), {}, [])
    else:
        backbone = match_backbone(required, keys, str(prefix))
    found: NamedArrays = list(backbone.constants.items())
    for name, stored in backbone.stored.items():
        key, like = keys[stored], required[name]
        if key in shapes and types[key].as_numpy_dtype == like.dtype:
            array = np.broadcast_to(like.dtype.type(0), shapes[key])
            if array.shape == like.shape:
                array = reader.get_tensor(key)
                array = array if is_own else convert_weight(name, array)
            found.append((name, array))
    return found, backbone.outside


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
    found = {
        name: [name] if name in stored else by_suffix[name.partition("/")[2]] for name in required
    }
    return {name: names[0] for name, names in found.items() if len(names) == 1}
