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
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.errors import ConfigError, ExitCode, MachineError
from pipeline_ops.input.framework_internals import SEED_STATE, list_assigned, list_layers
from pipeline_ops.models.user_errors import (
    convert_user_errors,
    list_own,
    list_own_frames,
    locate,
)
from pipeline_ops.served.model import ServedClassifier
from pipeline_ops.storage.local_files import read_json, translate_write_errors
from pipeline_ops.training.weight_files import number_paths, write_arrays

_PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")
_DRAWING = re.compile(r"Random(?!.*Dataset)|TruncatedNormal|Multinomial|^Stateful(?!Partitioned)")
_STATELESS = "Stateless"
_SEEDS = ("seed", "seed2")
_GENERATOR = "StateVar"
"""The name of the state of a tf.random.Generator, which may be used in a training."""
_TRIALS = 8
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
      images: float32 [N, H, W, C], with N > 1.
      name: the model, in messages.
    """
    _refuse_states(model, name)
    built = {id(each) for each in model.weights}
    traced, _ = _trace(model, images, True, name)
    if late := [each for each in model.weights if id(each) not in built]:
        places = locate_reads(traced, {id(each.value.handle) for each in late})
        raise ConfigError(
            f"{name} creates the weights {', '.join(each.path for each in late[:4])} when it is "
            f"first called with training=True ({places}), so the served model lacks them. Build "
            "their layer before: call it also if training is false, or call its build in the "
            "build of the layer around it."
        )
    for training in (True, False):
        graph, assigned = _trace(model, images, training, name)
        for node, operation in _list_nodes(graph):
            if node.op in _PYTHON:
                raise ConfigError(
                    f"{name} calls Python inside of its graph ({_locate(operation)}), by "
                    "tf.numpy_function or tf.py_function. A SavedModel cannot. Use TensorFlow's "
                    "operations."
                )
            if not training and _draws(node):
                raise ConfigError(
                    f"{name} draws random numbers when it answers ({_locate(operation)}), so two "
                    "answers to one image differ. Draw them only if training is true."
                )
        if training and (place := _find_difference(traced, graph)):
            raise ConfigError(
                f"{name}: another trace of the call with training=True computes something else "
                f"({place}). A counter in Python, or a number that Python or NumPy draws, is a "
                "constant of the graph, the same in all steps. Keep it in a weight (add_weight "
                "with trainable=False), and draw by Keras's layers or its SeedGenerator."
            )
        _refuse_untracked(graph, model, name)
        if not training and assigned:
            raise ConfigError(
                f"{name} changes {', '.join(assigned)} when it answers, so an answer depends on "
                "those before. Change variables only if training is true."
            )
    drawn = [each for node, each in _list_nodes(graph) if node.op.startswith("StatelessRandom")]
    called = LayerMeans(model, images)
    check_answers(
        name,
        called.answers,
        LayerMeans(model, images).answers,
        "two calls with the same images answer otherwise, so the served model would, too. Draw "
        f"numbers only if training is true{f' ({_locate(drawn[-1])})' if drawn else ''}. They "
        "differ",
        _REPEATED,
    )
    _refuse_parts_of_the_batch(model, images, called, name)
    if layer := _find_summed_loss(model, images[:2]):
        raise ConfigError(
            f"{name}: the losses that {_locate_class(layer)} adds grow with the number of images, "
            "so a training would depend on the number of workers. add_loss takes a mean over the "
            "batch: use tf.reduce_mean, or divide by the number of images."
        )


def draws_unrepeatably(model: keras.Model, images: tf.Tensor, name: str) -> bool:
    """Returns whether a model draws numbers in training without Keras's generators."""
    graph, _ = _trace(model, images, True, name)
    return any(_draws(node) for node, _ in _list_nodes(graph))


def trace_own_change(
    function: Callable[..., Any], name: str, image_shape: tuple[int, int, int]
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns the graph of the author's own change of an image, which is a function of its seed.

    Raises ConfigError if it is not, or if the result is no image of the same shape.
    """

    def trace() -> Any:
        given = tf.TensorSpec(image_shape, tf.float32), tf.TensorSpec([2], tf.int32)
        return tf.function(function).get_concrete_function(*given)

    images = list_images((NUM_ANSWERS, *image_shape))
    seeds = tf.reshape(tf.range(2 * NUM_ANSWERS), [NUM_ANSWERS, 2])
    wrong = " when called with (image, seed)"
    with tf.device("CPU:0"), convert_user_errors(name, True, wrong):  # where batches are made
        graph = trace()
        _refuse_unseeded(graph.graph, name)
        answers, again = (
            [each(*pair) for each in traces for pair in zip(images, seeds, strict=True)]
            for traces in ((graph, graph), (graph, trace()))
        )
    for answer in answers + again:
        if not tf.is_tensor(answer) or answer.dtype != tf.float32 or answer.shape != image_shape:
            kind = f"{answer.dtype.name} {[*answer.shape]}" if tf.is_tensor(answer) else answer
            raise ConfigError(
                f"{name} returns {kind} for an image of float32 {[*image_shape]}. It must return "
                "an image of the same type and shape, as by tf.cast or tf.image.resize."
            )
    low, high = float(tf.reduce_min(answers)), float(tf.reduce_max(answers))
    if not 1 < high < np.inf or not np.isfinite(low):
        raise ConfigError(
            f"{name} returns pixels from {low:g} to {high:g}. Pixels are in 0..255 here, and the "
            "model scales them. Return such values."
        )
    check_answers(
        name,
        answers,
        again,
        "two calls with the same image and seed return other pixels, so workers and restarted "
        "trainings would. Draw with tf.random.stateless_uniform or tf.image.stateless_random_... "
        "and the seed, not with Python or NumPy. They differ",
        _REPEATED,
    )
    return graph


def _refuse_unseeded(graph: Any, name: str) -> None:
    """Raises ConfigError if a graph draws numbers without a seed, or uses variables."""
    cure = "Draw with tf.random.stateless_uniform or tf.image.stateless_random_... and the seed"
    for node, operation in _list_nodes(graph):
        if _draws(node):
            raise ConfigError(
                f"{name} draws random numbers without its seed ({_locate(operation)}), so workers "
                f"and restarted trainings would draw others. {cure}."
            )
    if handles := {id(each.handle) for each in graph.variables}:
        raise ConfigError(
            f"{name} uses variables ({locate_reads(graph, handles)}), as Keras's layers do, also "
            f"to draw numbers. {cure}, or put the layers into the model."
        )


def _draws(node: Any) -> bool:
    """Returns whether a node of a graph draws numbers that no seed among its inputs repeats."""
    return bool(_DRAWING.search(node.op)) and not node.op.startswith(_STATELESS)


def _refuse_states(model: keras.Model, name: str) -> None:
    for layer in list_layers(model):
        if getattr(layer, "stateful", False):
            raise ConfigError(
                f"{name}: the layer {layer.path} has stateful=True, so an answer depends on those "
                "before. Set stateful=False."
            )
        for attribute, value in vars(layer).items():
            handle = getattr(value, "resource_handle", None)
            if tf.is_tensor(handle) and not hasattr(handle, "numpy"):
                raise ConfigError(
                    f"{name}: {_locate_class(layer)} creates its {attribute} while a graph is "
                    "traced. Create it in __init__."
                )
    if any(isinstance(each.value, tf.distribute.DistributedValues) for each in model.variables):
        raise ConfigError(
            f"{name} creates its weights in the scope of a tf.distribute.Strategy of its own. "
            "Leave the scope out: train.strategy and train.devices_per_worker choose it."
        )


def _trace(
    model: keras.Model, images: tf.Tensor, training: bool, name: str
) -> tuple[Any, list[str]]:
    """Returns the graph of a call, and the paths of the variables that it assigns.

    Not those of generators of random numbers: a recurrent layer draws masks that it does not use.
    """
    assigned: list[str] = []

    def call(images: tf.Tensor) -> Any:
        outputs = model(images, training=training)
        kept = [each for each in model.variables if each.name != SEED_STATE]
        assigned.extend(list_assigned(kept))
        return outputs

    with convert_user_errors(name, True, f" when called in a graph with training={training}"):
        return tf.function(call, autograph=False).get_concrete_function(images).graph, assigned


def _list_nodes(graph: Any) -> Iterator[tuple[Any, tf.Operation]]:
    """Yields each node, also of those in loops, branches and functions, with its operation.

    That is the operation of the graph itself that contains the node.
    """
    functions = {each.signature.name: each for each in graph.as_graph_def().library.function}

    def list_inside(node: Any) -> Iterator[Any]:
        yield node
        for _, value in sorted(node.attr.items()):
            for called in (value.func, *value.list.func):
                if called.name in functions:
                    for inner in functions[called.name].node_def:
                        yield from list_inside(inner)

    for operation in graph.get_operations():
        for node in list_inside(operation.node_def):
            yield node, operation


def _find_difference(first: Any, second: Any) -> str | None:
    """Returns the place of the first operation that another trace has not. Names do not count."""

    def describe(node: Any) -> list[Any]:
        kept = [
            (key, value.SerializeToString(deterministic=True))
            for key, value in sorted(node.attr.items())
            if key not in _SEEDS and key[0] != "_" and not (value.func.name or value.list.func)
        ]
        is_text = node.op == "Const" and node.attr["dtype"].type == tf.string.as_datatype_enum
        return [node.op, [] if is_text else kept]

    traces = [*_list_nodes(first)], [*_list_nodes(second)]
    longer = max(traces[::-1], key=len)
    for (_, operation), pair in zip(longer, itertools.zip_longest(*traces), strict=True):
        if None in pair or describe(pair[0][0]) != describe(pair[1][0]):
            return _locate(operation)
    return None


def _refuse_untracked(graph: Any, model: keras.Model, name: str) -> None:
    """Raises ConfigError if the graph reads variables that are not the model's, with the places.

    Also in loops, branches and functions. Tables and generators of TensorFlow are left out.
    """
    known = {id(variable.value.handle) for variable in model.variables}
    hidden = {
        id(each.handle): each
        for each in graph.variables
        if id(each.handle) not in known and not each.name.startswith(_GENERATOR)
    }
    metrics = {
        id(variable.value.handle)
        for layer in (model, *list_layers(model))
        for variable in layer.metrics_variables
    }
    if held := hidden.keys() & metrics:
        raise ConfigError(
            f"{name} updates a metric of a layer ({locate_reads(graph, held)}), which is neither "
            "saved nor the same in all workers. Leave it out, and name metrics in train.metrics."
        )
    if drawing := {handle for handle, each in hidden.items() if SEED_STATE in each.name}:
        raise ConfigError(
            f"{name} draws numbers with a generator that is no part of the model "
            f"({locate_reads(graph, drawing)}), so a restarted training draws others. Make "
            "keras.random.SeedGenerator(seed) an attribute of the layer, and draw with it as the "
            "seed."
        )
    if hidden:
        raise ConfigError(
            f"{name} reads variables that are no weights of the model "
            f"({locate_reads(graph, hidden)}), so they neither learn nor are saved. Create them "
            "by add_weight, and layers as attributes of a layer or of the model."
        )


def locate_reads(graph: Any, handles: Container[int]) -> str:
    """Returns the places where a graph first uses variables, by the ids of their handles."""
    used = (inside.consumers()[:1] for outside, inside in graph.captures if id(outside) in handles)
    places = dict.fromkeys(_locate(operation) for first in used for operation in first)
    return ", ".join([*places][:4])


def _refuse_parts_of_the_batch(
    model: keras.Model, images: tf.Tensor, called: LayerMeans, name: str
) -> None:
    """Raises ConfigError if an answer depends on the other images of its batch.

    `called` is the call with all images.
    """
    singles = [LayerMeans(model, image[None]) for image in images]
    means = [
        [*np.mean(values, axis=0)]
        for values in zip(*(each.means for each in singles), strict=False)
    ]
    check_answers(
        name,
        called.answers,
        [tf.concat(each, 0) for each in zip(*(each.answers for each in singles), strict=True)],
        "the answer to an image depends on the other images of its batch, first in "
        f"{called.find_first_difference(means)}. The served model gets them one by one, too. "
        "Compute means, deviations and softmax for each image, or keep those of the training in a "
        "weight, as BatchNormalization does. The answers differ",
        choose_tolerance(model),
        smallest=0.1,
    )


def _find_summed_loss(model: keras.Model, images: tf.Tensor) -> keras.Layer | None:
    """Returns the innermost layer that adds a loss which grows in proportion to the batch.

    The batch consists of copies of the images, so its statistics stay the same, and so does a mean.
    Noise, as of dropout, does not grow in most trials.
    """
    kept = [(variable, variable.numpy()) for variable in model.variables]

    def measure(copies: int) -> list[float]:
        for variable, value in kept:
            if variable.name != SEED_STATE:
                variable.assign(value)
        model(tf.tile(images, [copies, 1, 1, 1]), training=True)
        return [abs(float(tf.reduce_sum(tf.cast(each, tf.float64)))) for each in model.losses]

    found = None
    if measure(1) and any(
        b > 2 * a for _ in range(2) for a, b in zip(measure(1), measure(4), strict=False)
    ):
        trials = np.array([[measure(copies) for copies in (1, 4, 16)] for _ in range(_TRIALS)])
        once, more, most = trials.mean(axis=0)
        has_grown = (np.diff(trials, axis=1) > 0).all(axis=1).sum(axis=0) >= 0.75 * _TRIALS
        is_sum = has_grown & (more > 2 * once) & (most - more > 2.5 * (more - once))
        for number in np.flatnonzero(is_sum)[:1]:
            found = model
            for layer in list_layers(model):  # parents come before children
                if any(each is model.losses[number] for each in layer.losses):
                    found = layer
    for variable, value in kept:
        variable.assign(value)
    return found


def _locate(operation: tf.Operation) -> str:
    """Returns the layer, file and line of an operation, as far as it has them."""
    layer = operation.name.rpartition("/ReadVariableOp")[0] or operation.name
    own = list_own(operation.traceback)
    return ", ".join([layer, *(f"{each.filename}:{each.lineno}" for each in own[-1:])])


def check_answers(
    name: str, first: Any, second: Any, what: str, tolerance: float, smallest: float = 1.0
) -> None:
    """Raises ConfigError if two answers to the same images differ. Equal NaNs do not.

    Args:
      name: the model, in messages.
      first: a structure of arrays, the answers of the model.
      second: the same of the other call.
      what: the rest of the sentence, from "two calls" on.
      tolerance: the largest difference, in parts of the largest answer.
      smallest: the largest answer, if all are smaller.
    """
    for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True):
        one, other = (np.asarray(tf.cast(each, tf.float64)) for each in (a, b))
        is_other = ~((one == other) | (np.isnan(one) & np.isnan(other)))
        difference = np.abs(one - other)[is_other].max(initial=0.0)
        largest = np.abs(one[np.isfinite(one)]).max(initial=smallest)
        if not difference <= tolerance * largest:
            raise ConfigError(f"{name}: {what} by up to {difference:.3g}.")


def choose_tolerance(model: keras.Model) -> float:
    types = {layer.compute_dtype for layer in list_layers(model)}
    return REDUCED_TOLERANCE if types & {"bfloat16", "float16"} else _TOLERANCE


class LayerMeans:
    """The mean sizes of the inputs and outputs of all layers in a call of a model, in order."""

    def __init__(self, model: keras.Model, images: tf.Tensor):
        self.places: list[tuple[str, keras.Layer]] = []
        self.means: list[list[float]] = []
        changed = [(layer, vars(layer).get("call")) for layer in list_layers(model)]
        for layer, _ in changed:
            layer.call = functools.partial(self._call, layer, layer.call)
        try:
            self.answers = tf.nest.flatten(model(images, training=False))
        finally:
            for layer, own in changed:
                del layer.call
                if own:  # a method that the author has replaced
                    layer.call = own

    def _call(self, layer: keras.Layer, call: Any, *arguments: Any, **options: Any) -> Any:
        self._keep("the input of ", layer, (arguments, options))
        outputs = call(*arguments, **options)
        self._keep("", layer, outputs)
        return outputs

    def _keep(self, part: str, layer: keras.Layer, values: Any) -> None:
        if tf.executing_eagerly():  # and not inside of a tf.function of the author
            tensors = [each for each in tf.nest.flatten(values) if tf.is_tensor(each)]
            floats = [each for each in tensors if tf.as_dtype(each.dtype).is_floating]
            numbers = [tf.cast(each, tf.float64) for each in floats]
            self.places.append((part, layer))
            self.means.append([float(tf.reduce_mean(tf.abs(each))) for each in numbers])

    def find_first_difference(self, means: Sequence[Sequence[float]]) -> str:
        """Returns the first layer, or its input, that differs in another call, and its file."""
        for (part, layer), own, other in zip(self.places, self.means, means, strict=False):
            if not np.allclose(own, other, _TOLERANCE, 1e-6, equal_nan=True):
                return part + _locate_class(layer)
        return "the model itself"


def _locate_class(layer: keras.Layer) -> str:
    """Returns the path of a layer and, if its class is not Keras's, file and line of that."""
    kind = layer.function if isinstance(layer, keras.layers.Lambda) else type(layer)
    if (kind.__module__ or "").startswith("keras.") or not inspect.getsourcefile(kind):
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


def spread_weights(model: keras.Model) -> None:
    """Gives each weight values of its own.

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


def check_twin(
    model: keras.Model, images: tf.Tensor, name: str, folder: Path, request: bytes
) -> None:
    """Compares a classifier with its SavedModel and with the model of a second process.

    Args:
      model: a model of the author.
      images: float32 [N, H, W, C].
      name: the model, in messages.
      folder: a folder for the files.
      request: what the second process gets on its stdin, the request of the check.
    """
    called = LayerMeans(model, images)
    tolerance = choose_tolerance(model)
    write_arrays(
        folder / WEIGHTS, model.get_weights(), number_paths(each.path for each in model.weights)
    )
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
            f"{_shorten(str(error))}{locate(list_own_frames(error))}"
        ) from error
    with convert_user_errors(name, True, " when it is called as it is served"):
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
    """Returns images of random pixels, always the same, float32 of the shape [N, H, W, C].

    Each is brighter than the one before, so that their statistics differ.
    """
    pixels = tf.cast(tf.random.stateless_uniform(shape, [1, 2], 0, 256, tf.int32), tf.float32)
    brightness = tf.range(1.0, shape[0] + 1.0) / shape[0]
    return tf.round(pixels * brightness[:, None, None, None])
