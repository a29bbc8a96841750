"""Models of the catalogue, and a user's own models, losses and metrics.

`config/model_catalogue.py` lists the names. Each module that it lists has
`build(image_shape, num_classes, **parameters)`. A user's function is named as
`my_package.my_module:function`. Its module is found like any Python module, or next to the config
file. `user_code/models.py` determines which of their code belongs to a fingerprint.

A model takes float32 images in 0..255, shape [batch, height, width, channels], scales them itself,
and returns logits [batch, num_classes]. The same holds for a user's own function, which may also be
a subclass of keras.Model, and whose model may end in softmax. A detector returns the input of its
head, and its module also has `make_head(image_shape, num_classes, **parameters)`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import keras
import tensorflow as tf

from pipeline_ops.config.model_catalogue import CATALOGUE, is_user_function
from pipeline_ops.config.train import Train
from pipeline_ops.contract.results import choose_max_detections
from pipeline_ops.errors import ConfigError
from pipeline_ops.input.framework_internals import list_layers
from pipeline_ops.models.classification import return_logits
from pipeline_ops.models.detection import Head
from pipeline_ops.models.own_functions import make_per_example
from pipeline_ops.models.user_errors import describe_call, list_own_frames, locate
from pipeline_ops.user_code import modules
from pipeline_ops.user_code.opened_files import explain_unnamed_files

_POLICIES = {
    "float32": keras.DTypePolicy("float32"),
    "bfloat16": keras.DTypePolicy("mixed_bfloat16"),
    "float16": keras.DTypePolicy("mixed_float16"),
}
_STEP_METHODS = ("train_step", "test_step", "compute_loss", "compute_metrics")
_METHODS_OF_FIT = (
    *("predict_step", "stateless_compute_loss", "make_train_function", "make_test_function"),
    *("make_predict_function", "fit", "evaluate", "predict"),
)


def build_model(
    config: Train,
    image_shape: tuple[int, int, int],
    num_classes: int,
    folder: Path,
    for_training: bool,
) -> keras.Model:
    """Returns the model of a config, with new weights. `folder` has the author's modules.

    For training, the model computes with the config's precision. Otherwise it computes in float32
    and without dropout, as the served model does. Random numbers depend on `config.seed`, so every
    process draws the same.
    """
    keras.utils.set_random_seed(config.seed)
    parameters, is_own = config.model_parameters, is_user_function(config.model)
    watch: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    try:
        if is_own:
            with _use_precision(config, for_training, is_import=True):
                build = load_function(config.model, "train.model", folder)
            watch = explain_unnamed_files(folder, f"train.model: {config.model}")
        else:
            entry = CATALOGUE[config.model]
            build = importlib.import_module(f"{__name__}.{entry.module}").build
            parameters = {**entry.arguments, **parameters}
        with watch, _use_precision(config, for_training):
            model = build(image_shape, num_classes, **parameters)
            if isinstance(model, keras.Model) and not model.built:
                model(keras.Input(image_shape))  # computes nothing, and creates the weights
    except (TypeError, ValueError) as error:
        call = f"{config.model.partition(':')[2]}(image_shape, num_classes, **model_parameters)"
        hint = f". It is called as {call}" if is_own and isinstance(error, TypeError) else ""
        raise ConfigError(
            f"train.model: cannot build {config.model} for images of shape {image_shape} and "
            f"{num_classes} classes: {describe_call(error)}{locate(list_own_frames(error))}{hint}"
        ) from error
    if not (isinstance(model, keras.Model) and model.built):
        raise ConfigError(
            f"train.model: {config.model} must return a Keras model, got {model!r}"
            f"{_explain_old_keras(model)}"
        )
    _read_statistics_in_calls(model)
    if not for_training:
        _leave_dropout_out(model)
    if is_own:
        _refuse_parts_of_fit(model, config.model)
    if is_own and not (for_training and has_own_step(model, config)):
        return_logits(model, config.model, image_shape, num_classes)
    if config.synchronized_batch_normalization and for_training:
        _synchronize_batch_normalization(config, model)
    return model


@contextlib.contextmanager
def _use_precision(config: Train, for_training: bool, is_import: bool = False) -> Iterator[None]:
    """Sets Keras's dtype policy for the block. Raises ConfigError if the author's code changes it.

    A module may set the policy of `train.precision` while it is imported. The function may not,
    because the served model computes in float32.
    """
    name, trained = f"train.model: {config.model}", _POLICIES[config.precision]
    policy = trained if for_training else _POLICIES["float32"]
    before = keras.config.dtype_policy()  # perhaps of a loss or a callback that was imported
    is_own = any(before is each for each in _POLICIES.values())
    if not is_own and before.name not in ("float32", trained.name):
        _refuse_policy(config, before.name)
    keras.config.set_dtype_policy(policy)
    graph = tf.compat.v1.get_default_graph()
    yield
    if tf.compat.v1.get_default_graph() is not graph:
        raise ConfigError(
            f"{name} calls Keras's clear_session, which also resets train.precision and the "
            "strategy of the training. Remove the call: each process builds one model."
        )
    if (floatx := keras.config.floatx()) != "float32":
        raise ConfigError(
            f"{name}: keras.config.set_floatx has set {floatx}. Remove the call: train.precision "
            "sets the type of all layers, and the argument dtype of a layer sets its own."
        )
    found = keras.config.dtype_policy()
    allowed = found.name == trained.name and (is_import or found.name == policy.name == "float32")
    if found is not policy and not allowed:
        _refuse_policy(config, found.name)


def _refuse_policy(config: Train, found: str) -> NoReturn:
    keys = [key for key, policy in _POLICIES.items() if policy.name == found]
    cure = f"set train.precision: {keys[0]}" if keys else "give single layers the argument dtype"
    raise ConfigError(
        f"train.model: {config.model}: its code, or another module of the author's, sets Keras's "
        f"dtype policy to {found}, and train.precision: {config.precision} sets it to "
        f"{_POLICIES[config.precision].name} for the training. Remove set_dtype_policy, and "
        f"{cure}."
    )


def _explain_old_keras(model: Any) -> str:
    if "tf_keras" not in {each.__module__.partition(".")[0] for each in type(model).__mro__}:
        return ""
    return (
        f", a model of Keras 2 (tf_keras), which Keras {keras.__version__} cannot train. Build it "
        "from layers of the package keras, and unset TF_USE_LEGACY_KERAS"
    )


def list_own_parts(model: keras.Model) -> list[str]:
    """Lists the author's own parts of a step of `fit`, `compile` among them.

    Parts of inner models are left out, because `fit` does not call them either.
    """
    parts = [method for method in _STEP_METHODS if _has_own(model, method)]
    is_compiled = model.compiled is True  # an author may have a layer of this name
    return [*parts, *["compile"] * is_compiled]


def has_own_step(model: keras.Model, config: Train) -> bool:
    """Returns whether the steps of a training are the author's own (`training/own_step.py`)."""
    return config.step is not None or bool(list_own_parts(model))


def _has_own(model: keras.Model, method: str) -> bool:
    replaced = vars(model).get(method)  # perhaps by a layer of this name
    is_function = callable(replaced) and not isinstance(replaced, keras.Layer)
    return is_function or getattr(type(model), method) is not getattr(keras.Model, method)


def _refuse_parts_of_fit(model: keras.Model, name: str) -> None:
    """Raises ConfigError for own methods of `fit` that are never called here."""
    for method in _METHODS_OF_FIT:
        if _has_own(model, method):
            raise ConfigError(
                f"train.model: {name}: {type(model).__name__}.{method} would never be called, "
                "because the training has its own loop, and inference uses call. Use train_step, "
                "test_step and call."
            )


def _leave_dropout_out(model: keras.Model) -> None:
    """Sets the dropout of all recurrent cells to 0.

    Even in inference, the cells draw dropout masks, which they do not use. That needs a state that
    a SavedModel lacks.
    """
    for layer in list_layers(model):
        if hasattr(layer, "get_dropout_mask"):
            layer.dropout = layer.recurrent_dropout = 0.0


def _read_statistics_in_calls(model: keras.Model) -> None:
    """Makes layers such as Normalization compute with their current weights.

    They compute with constants that Keras's `finalize_state` derives from the weights. Only some
    ways to set weights call it, so each call of the layer does.
    """
    for layer in list_layers(model):
        if layer.weights and hasattr(layer, "finalize_state"):
            layer.call = functools.partial(_finalize_and_call, layer, layer.call)


def _finalize_and_call(layer: Any, call: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    layer.finalize_state()
    return call(*inputs, **options)


def make_head(
    config: Train, image_shape: tuple[int, int, int], num_classes: int, most_boxes: int = 0
) -> Head:
    """Returns the head that interprets the outputs of the config's detector.

    `most_boxes` is the largest number of boxes in an image of the data set. The head returns as
    many detections, unless the config has a number.
    """
    module = importlib.import_module(f"{__name__}.{CATALOGUE[config.model].module}")
    parameters = dict(config.model_parameters)
    if parameters.get("max_detections") is None:
        parameters["max_detections"] = choose_max_detections(most_boxes)
    head: Head = module.make_head(image_shape, num_classes, **parameters)
    return head


def _synchronize_batch_normalization(config: Train, model: keras.Model) -> None:
    """Makes every batch normalisation take its statistics over all replicas.

    The layers read this attribute in each call.
    """
    normalizations = [
        layer for layer in list_layers(model) if isinstance(layer, keras.layers.BatchNormalization)
    ]
    if not normalizations:
        raise ConfigError(
            f"train.synchronized_batch_normalization: the model {config.model} has no "
            "keras.layers.BatchNormalization. Remove the option or choose another model"
        )
    for layer in normalizations:
        layer.synchronized = True


def load_object(path: str, key: str, folder: Path) -> Any:
    """Returns the object behind a module path. `folder` has the author's modules."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that nothing there hides an installed package
    remedy = (
        "Install its package for the job, add its folder to PYTHONPATH, or put it next to the "
        f"config in {folder}. List a module that is imported by a computed name in "
        f"{key.partition('.')[0]}.files"
    )
    with explain_unnamed_files(folder, f"{key}: {path}"):
        return modules.load_object(path, key, remedy)


def load_function(path: str, key: str, folder: Path) -> Callable[..., Any]:
    """Returns the function behind a module path."""
    found: Callable[..., Any] = load_object(path, key, folder)
    if not callable(found):
        raise ConfigError(f"{key}: {path} is a {type(found).__name__}. It must be a function")
    return found


def load_per_example(
    path: str, key: str, folder: Path, arguments: Mapping[str, Any] = MappingProxyType({})
) -> Callable[..., Any]:
    """Returns the loss or the metric behind a module path, as a function of labels and outputs."""
    return make_per_example(load_function(path, key, folder), f"{key}: {path}", arguments, folder)
