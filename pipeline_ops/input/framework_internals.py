"""All private parts of TensorFlow and Keras that this project uses, with a check that they exist.

No promise of stability covers them, so only tested versions are allowed. Importing this module
looks up every part, and raises an error with the installed and the tested versions if one is
missing. It runs no TensorFlow operation, so it is safe before a fork. `models/slim.py` has the
parts that models of tf-slim need.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline_ops.errors import ConfigError

TESTED = {"tensorflow": ("2.21", "2.22"), "keras": ("3.15", "3.16")}
"""The tested range of each package: the first version, and the first version after it."""


def _find(path: str) -> Any:
    """Returns `module:name` or `module:name.member`. Raises ConfigError if it does not exist."""
    module, _, name = path.partition(":")
    try:
        return operator.attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise _make_version_error(path) from error


def _check_sets(method: str, attribute: str) -> None:
    """Raises ConfigError if a method does not use an attribute, which only instances have."""
    if attribute not in inspect.unwrap(_find(method)).__code__.co_names:
        raise _make_version_error(f"{method.rpartition('.')[0]}.{attribute}")


def _make_version_error(path: str) -> ConfigError:
    requirements = " ".join(
        f"'{package}>={first},<{end}'" for package, (first, end) in TESTED.items()
    )
    return ConfigError(
        f"TensorFlow {tf.__version__} and Keras {keras.__version__} have no {path}, which is used "
        f"here. The tested versions are TensorFlow {TESTED['tensorflow'][0]} and Keras "
        f"{TESTED['keras'][0]}. Install these: pip install {requirements}"
    )


_OPTIMIZER = "keras.src.optimizers.base_optimizer:BaseOptimizer"

CollectiveAllReduceExtended = _find(
    "tensorflow.python.distribute.collective_all_reduce_strategy:CollectiveAllReduceExtended"
)
TrackableObjectGraph = _find(
    "tensorflow.core.protobuf.trackable_object_graph_pb2:TrackableObjectGraph"
)
freeze_variables = _find(
    "tensorflow.python.framework.convert_to_constants:convert_variables_to_constants_v2"
)
get_creation_path = _find("keras.src.backend.common.name_scope:current_path")
"""Returns the path of the Keras variable that is being created."""
_ConfigProto = _find("tensorflow.core.protobuf.config_pb2:ConfigProto")
_get_context = _find("tensorflow.python.eager.context:context")

for _path in (
    "tensorflow:distribute.StrategyExtended._in_multi_worker_mode",
    "tensorflow.python.distribute.collective_all_reduce_strategy:"
    "CollectiveAllReduceExtended._initialize_local_devices",
    "tensorflow.core.protobuf.config_pb2:"
    "ConfigProto.Experimental.DISABLE_THREAD_SPINNING_FIELD_NUMBER",
    "keras:Layer._flatten_layers",
    "keras:optimizers.Optimizer._all_reduce_sum_gradients",
    f"{_OPTIMIZER}._update_model_variables_moving_average",
):
    _find(_path)
for _method, _attribute in (
    ("tensorflow.python.eager.context:Context.__init__", "_config"),
    (f"{_OPTIMIZER}.build", "_model_variables_moving_average"),
    ("keras:optimizers.Adam.build", "_momentums"),
    ("keras:optimizers.Adam.build", "_velocities"),
    ("keras:optimizers.SGD.build", "momentums"),
    ("keras.src.ops.operation:Operation.__init__", "_inbound_nodes"),
    ("keras.src.ops.node:Node.__init__", "_keras_history"),
):
    _check_sets(_method, _attribute)


def disable_thread_spinning() -> None:
    """Makes idle threads of TensorFlow sleep at once. Must precede the first operation."""
    config = _ConfigProto()
    config.experimental.disable_thread_spinning = True
    _get_context()._config = config


@contextlib.contextmanager
def override_local_devices(devices: Sequence[str]) -> Iterator[None]:
    """Makes a MultiWorkerMirroredStrategy take the given devices while the block runs.

    Otherwise it takes all GPUs, or one CPU. It looks for them in a private method, which is
    replaced.
    """
    kind = devices[0].strip("/").partition(":")[0].upper()

    def list_devices(_extended: Any, _resolver: Any, host: str) -> tuple[tuple[str, ...], str]:
        return tuple(f"{host}/device:{kind}:{number}" for number in range(len(devices))), kind

    original = CollectiveAllReduceExtended._initialize_local_devices
    CollectiveAllReduceExtended._initialize_local_devices = list_devices
    try:
        yield
    finally:
        CollectiveAllReduceExtended._initialize_local_devices = original


def count_local_replicas(strategy: tf.distribute.Strategy) -> int:
    return (
        len(strategy.extended.worker_devices)
        if strategy.extended._in_multi_worker_mode()
        else strategy.num_replicas_in_sync
    )


def list_layers(model: keras.Model) -> list[keras.Layer]:
    """Returns all layers below a model, those inside of other layers included."""
    return list(model._flatten_layers(include_self=False))


def find_producer(output: keras.KerasTensor) -> tuple[keras.Layer, list[keras.KerasTensor]]:
    """Returns the layer that produces a tensor of a functional model, and the layer's inputs."""
    layer, node, _ = output._keras_history
    return layer, layer._inbound_nodes[node].input_tensors


def keep_gradients(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes `apply_gradients` take gradients that are summed over all replicas already."""
    optimizer._all_reduce_sum_gradients = lambda gradients: gradients


def get_slots(optimizer: keras.optimizers.Optimizer) -> dict[str, list[keras.Variable]]:
    """Returns the slots of an optimizer by name, each with a variable for every weight.

    The optimizer is SGD, RMSprop, Adam or AdamW, and is built. The names are momentums, velocities
    and averages.
    """
    names = (
        ("momentums", "momentums"),
        ("_momentums", "momentums"),
        ("_velocities", "velocities"),
        ("_model_variables_moving_average", "averages"),
    )
    return {name: found for private, name in names if (found := getattr(optimizer, private, None))}


def replace_average_update(
    optimizer: keras.optimizers.Optimizer, update: Callable[[Sequence[keras.Variable]], None]
) -> None:
    """Makes the optimizer update its averaged weights with `update`, given the weights."""
    optimizer._update_model_variables_moving_average = update
