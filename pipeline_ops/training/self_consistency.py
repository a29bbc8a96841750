"""Checks that a model is no more than its weights and its code: that its graph neither reads nor
draws anything else, and that another process builds the same model.

The model that is served is built again from the trained weights, by another process. So it must
depend on nothing else. `check.py` runs these checks for a model of the author's own: the graph is
read, the model is called twice, and `model_twin.py` compares it with one that a second process
builds from the same weights, and with its SavedModel in that process, without the author's modules.
"""

from __future__ import annotations

import functools
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.artifacts.source_code import CODE_ROOT
from pipeline_ops.errors import ConfigError, ExitCode, MachineError
from pipeline_ops.input.framework_internals import SEED_STATE, list_assigned, list_layers
from pipeline_ops.served.model import ServedClassifier
from pipeline_ops.storage.local_files import read_json, translate_write_errors
from pipeline_ops.training.checkpoints import number_paths, write_arrays

_PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")
_DRAWING = re.compile(r"Random(?!.*Dataset)|TruncatedNormal|Multinomial|^Stateful(?!Partitioned)")
_STATELESS = "Stateless"
_INSTALLED = ("site-packages", "dist-packages", str(CODE_ROOT / "pipeline_ops"), "<")
_TIMEOUT_SECONDS = 240
_REPEATED, _TOLERANCE, TRAINED_TOLERANCE, REDUCED_TOLERANCE = 1e-5, 1e-4, 0.02, 0.25
"""In parts of the largest answer: of a second call, whose threads may add in another order, of the
same kernels in another process, of those of a GPU with TF32, and of bfloat16 and float16. Another
model is off by about the whole answer."""
NUM_ANSWERS = 4
"""The images whose answers the trained model leaves."""
TWIN_MODULE = "pipeline_ops.training.model_twin"
WEIGHTS, IMAGES, ANSWERS = "weights.npz", "images.npy", "answers.npz"
SAVED, VERDICT = "saved_model", "verdict.json"


def check_model_of_author(model: keras.Model, images: tf.Tensor, name: str) -> None:
    """Raises ConfigError for what a served model can't have, with layer, file and line.

    Args:
      model: a model of the author's own.
      images: float32 [N, H, W, C].
      name: the model, in messages.
    """
    for training in (True, False):
        graph, assigned = _trace(model, images, training)
        for kind, place in _list_operations(graph):
            if kind in _PYTHON:
                raise ConfigError(
                    f"{name} calls Python inside of its graph ({place}), by tf.numpy_function or "
                    "tf.py_function. A SavedModel cannot. Use TensorFlow's operations."
                )
            if not training and _DRAWING.search(kind) and not kind.startswith(_STATELESS):
                raise ConfigError(
                    f"{name} draws random numbers when it answers ({place}), so two answers to one "
                    "image differ. Draw them only if training is true."
                )
        if hidden := [*_find_untracked(graph, model)]:
            raise ConfigError(
                f"{name} reads variables that are no weights of the model "
                f"({', '.join(hidden[:4])}), so they neither learn nor are saved. Create them by "
                "add_weight, and layers as attributes of a layer or of the model."
            )
        if not training and assigned:
            raise ConfigError(
                f"{name} changes {', '.join(assigned)} when it answers, so an answer depends on "
                "those before. Change variables only if training is true."
            )
    drawn = [place for kind, place in _list_operations(graph) if kind.startswith("StatelessRandom")]
    check_answers(
        name,
        model(images, training=False),
        model(images, training=False),
        "two calls with the same images answer otherwise, so the served model would, too. Draw "
        f"numbers only if training is true{f' ({drawn[-1]})' if drawn else ''}. They differ",
        _REPEATED,
    )


def draws_unrepeatably(model: keras.Model, images: tf.Tensor) -> bool:
    """Returns whether a model draws numbers in training without Keras's generators."""
    graph, _ = _trace(model, images, True)
    return any(
        _DRAWING.search(kind) and not kind.startswith(_STATELESS)
        for kind, _ in _list_operations(graph)
    )


def _trace(model: keras.Model, images: tf.Tensor, training: bool) -> tuple[Any, list[str]]:
    """Returns the graph of a call, and the paths of the variables that it assigns.

    Not those of generators of random numbers: a recurrent layer draws masks that it does not use.
    """
    assigned: list[str] = []

    def call(images: tf.Tensor) -> Any:
        outputs = model(images, training=training)
        kept = [each for each in model.variables if each.name != SEED_STATE]
        assigned.extend(list_assigned(kept))
        return outputs

    return tf.function(call, autograph=False).get_concrete_function(images).graph, assigned


def _list_operations(graph: Any) -> Iterator[tuple[str, str]]:
    """Yields the type and the place of each operation, also of those in loops and branches."""
    for operation in graph.get_operations():
        yield operation.type, _locate(operation)
    for function in graph.as_graph_def().library.function:
        for node in function.node_def:
            yield node.op, node.name


def _find_untracked(graph: Any, model: keras.Model) -> Iterator[str]:
    """Yields the places where the graph reads variables that are not the model's."""
    known = {id(variable.value.handle) for variable in model.variables}
    for outside, inside in graph.captures:
        if outside.dtype == tf.resource and id(outside) not in known:
            for operation in inside.consumers():
                if operation.type in ("ReadVariableOp", "ResourceGather"):
                    yield _locate(operation)


def _locate(operation: tf.Operation) -> str:
    """Returns the layer, file and line of an operation, as far as it has them."""
    layer = operation.name.rpartition("/ReadVariableOp")[0] or operation.name
    own = [
        f"{frame.filename}:{frame.lineno}"
        for frame in operation.traceback
        if not any(part in frame.filename for part in _INSTALLED)
    ]
    return ", ".join([layer, *own[-1:]])


def check_answers(name: str, first: Any, second: Any, what: str, tolerance: float) -> None:
    """Raises ConfigError if two answers to the same images differ. Equal NaNs do not.

    Args:
      name: the model, in messages.
      first: a structure of arrays, the answers of the model.
      second: the same of the other call.
      what: the rest of the sentence, from "two calls" on.
      tolerance: the largest difference, in parts of the largest answer.
    """
    for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True):
        one, other = (np.asarray(tf.cast(each, tf.float64)) for each in (a, b))
        is_other = ~((one == other) | (np.isnan(one) & np.isnan(other)))
        difference = np.abs(one - other)[is_other].max(initial=0.0)
        largest = np.abs(one[np.isfinite(one)]).max(initial=1.0)
        if not difference <= tolerance * largest:
            raise ConfigError(f"{name}: {what} by up to {difference:.3g}.")


def choose_tolerance(model: keras.Model) -> float:
    types = {layer.compute_dtype for layer in list_layers(model)}
    return REDUCED_TOLERANCE if types & {"bfloat16", "float16"} else _TOLERANCE


class LayerSums:
    """The sums of the outputs of all layers in a call of a model, in the order of the calls."""

    def __init__(self, model: keras.Model, images: tf.Tensor):
        self.layers: list[keras.Layer] = []
        self.sums: list[list[float]] = []
        replaced = [(layer, vars(layer).get("call")) for layer in list_layers(model)]
        for layer, _ in replaced:
            layer.call = functools.partial(self._call, layer, layer.call)
        try:
            self.answers = tf.nest.flatten(model(images, training=False))
        finally:
            for layer, call in replaced:
                del layer.call
                if call is not None:  # of the layer itself and not of its class
                    layer.call = call

    def _call(self, layer: keras.Layer, call: Any, *arguments: Any, **options: Any) -> Any:
        outputs = call(*arguments, **options)
        if tf.executing_eagerly():  # and not inside of a tf.function of the author
            values = [each for each in tf.nest.flatten(outputs) if tf.is_tensor(each)]
            numbers = [tf.cast(each, tf.float64) for each in values if each.dtype.is_floating]
            self.layers.append(layer)
            self.sums.append([float(tf.reduce_sum(tf.abs(each))) for each in numbers])
        return outputs

    def find_first_difference(self, sums: Sequence[Sequence[float]]) -> str:
        """Returns the first layer that has other outputs in another process, and its file."""
        for layer, own, other in zip(self.layers, self.sums, sums, strict=False):
            if not np.allclose(own, other, _TOLERANCE, _TOLERANCE, equal_nan=True):
                return _locate_class(layer)
        return "in the model itself"


def _locate_class(layer: keras.Layer) -> str:
    """Returns the path of a layer and, if its class is not Keras's, file and line of that."""
    kind = type(layer)
    if kind.__module__.startswith("keras."):
        return layer.path
    return f"{layer.path}, {inspect.getsourcefile(kind)}:{inspect.getsourcelines(kind)[1]}"


def _explain_saved(model: keras.Model) -> str:
    """Returns why a SavedModel may answer otherwise than its model, as far as that is seen."""
    for layer in list_layers(model):
        if isinstance(type(layer).call, tf.types.experimental.GenericFunction):
            return (
                f" The call of {_locate_class(layer)} is a tf.function, which keeps the weights of "
                "its first call: remove it. The step and the SavedModel are compiled anyway."
            )
    return ""


def spread_weights(model: keras.Model) -> list[np.ndarray]:
    """Gives each weight values of its own, and returns them.

    New weights are often zeros or ones, which hide a part of the model. The changes are small and
    have the mean 0, so that the activations of a deep model stay as large as they were.
    """
    draw, weights = np.random.default_rng(0), []
    for value in model.get_weights():
        if np.issubdtype(value.dtype, np.floating):
            scale = value.std() or np.abs(value).mean() or 0.5
            value = value + (0.1 * scale * draw.uniform(-1, 1, value.shape)).astype(value.dtype)
        weights.append(value)
    model.set_weights(weights)
    return weights


def check_twin(
    model: keras.Model, images: tf.Tensor, name: str, folder: Path, request: bytes
) -> None:
    """Compares a classifier with its SavedModel and with the model of a second process.

    Args:
      model: a model of the author, whose weights are changed.
      images: float32 [N, H, W, C].
      name: the model, in messages.
      folder: a folder for the files.
      request: what the second process gets on its stdin, the request of the check.
    """
    weights = spread_weights(model)
    called = LayerSums(model, images)
    tolerance = choose_tolerance(model)
    write_arrays(folder / WEIGHTS, weights, number_paths(each.path for each in model.weights))
    with translate_write_errors(folder / IMAGES):
        np.save(folder / IMAGES, images.numpy())
    served = ServedClassifier(model, tuple(images.shape[1:]))
    try:
        tf.saved_model.save(served, str(folder / SAVED), signatures={"images": served.images})
    except (OSError, tf.errors.ResourceExhaustedError) as error:  # a full disk
        raise MachineError(
            f"cannot write {folder / SAVED}: {_shorten(str(error))}. Free disk space, then retry."
        ) from error
    except Exception as error:  # of any kind, by an operation or a resource
        raise ConfigError(
            f"{name} cannot be written as a SavedModel: {type(error).__name__}: "
            f"{_shorten(str(error))}"
        ) from error
    expected = served.images(images)["probabilities"]
    verdict = _ask_twin(name, folder, request)
    if fault := verdict.get("fault"):
        raise ConfigError(fault if fault.startswith(name) else f"{name}: {fault}")
    first = called.find_first_difference(verdict["layers"])
    with np.load(folder / ANSWERS) as found:
        check_answers(
            name,
            called.answers,
            [found[f"model{number}"] for number in range(len(called.answers))],
            "a second process that built it with the same weights answers otherwise, first in "
            f"{first}. It depends on something besides its weights: numbers that it draws for "
            "itself, the order of a set, the time, the environment. Make that a weight "
            "(trainable=False) or a constant. The answers differ",
            tolerance,
        )
        check_answers(
            name,
            expected,
            found["saved"],
            f"its SavedModel answers otherwise in another process.{_explain_saved(model)} "
            "The answers differ",
            tolerance,
        )


def _ask_twin(name: str, folder: Path, request: bytes) -> dict[str, Any]:
    """Raises MachineError if the process was killed, or found no space or no time."""
    task = f"the second process that builds {name}"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", TWIN_MODULE, str(folder)],
            input=request,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"{task} was not done within {_TIMEOUT_SECONDS} s. Retry on an idle machine."
        ) from None
    verdict: dict[str, Any] | None = read_json(folder / VERDICT)
    end = done.stdout.decode(errors="replace")[-1000:].strip()
    if done.returncode < 0 or done.returncode == ExitCode.RETRY:
        why = end or "perhaps the memory was at its end. Retry"
        raise MachineError(f"{task} ended with {done.returncode}: {why}")
    if verdict is None:
        raise ConfigError(f"{name}: a second process cannot call it: {end}")
    return verdict


def _shorten(message: str, limit: int = 500) -> str:
    text = " ".join(message.split())
    return text if len(text) <= limit else f"{text[:limit]} ..."


def list_images(shape: Sequence[int]) -> tf.Tensor:
    """Returns images of random pixels, always the same, float32 of the shape [N, H, W, C]."""
    return tf.cast(tf.random.stateless_uniform(shape, [1, 2], 0, 256, tf.int32), tf.float32)
