"""All private parts of TensorFlow and Keras that this project uses, with a check that they exist.

No promise of stability covers them, so only tested versions are allowed. Importing this module
looks up every part, and raises an error with the installed and the tested versions if one is
missing. It runs no TensorFlow operation, so it is safe before a fork. `models/slim.py` has the
parts that models of tf-slim need.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from pipeline_ops.errors import ConfigError
from pipeline_ops.input.keras_start import keras

TESTED = {"tensorflow": ("2.21", "2.22"), "keras": ("3.15", "3.16")}
"""The tested range of each package: the first version, and the first version after it."""

_SENT = (tf.bool, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
"""The types of the variables whose initial values TensorFlow can send to other workers."""
_SLOTS = {"momentum": "momentums", "velocity": "velocities", "average": "averages"}
"""The slots of an optimizer by the last word of Keras's names of their variables."""

SEED_STATE = "seed_generator_state"
"""The name of the variable in which one of Keras's generators of random numbers keeps its state."""
_REMEMBERED: dict[type[keras.callbacks.Callback], tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: ("best", "best_epoch", "best_weights", "stopped_epoch", "wait"),
    keras.callbacks.History: ("epoch", "history"),
    keras.callbacks.ModelCheckpoint: (
        *("best", "_batches_seen_since_last_saving", "_current_epoch", "_last_batch_seen"),
    ),
    keras.callbacks.ReduceLROnPlateau: ("best", "cooldown_counter", "wait"),
    keras.callbacks.TensorBoard: ("_global_train_batch",),
}
"""What Keras's callbacks remember, by name, and no argument of a constructor."""
PRIVATE_NAMES: list[str] = []
"""All parts that were looked up, as `module:name`. The tests remove each of them in turn."""


def _find(path: str) -> Any:
    """Returns `module:name` or `module:name.member`. Raises ConfigError if it does not exist."""
    PRIVATE_NAMES.append(path)
    module, _, name = path.partition(":")
    try:
        return operator.attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise _make_version_error(path) from error


def _make_version_error(path: str) -> ConfigError:
    requirements = " ".join(
        f"'{package}>={first},<{end}'" for package, (first, end) in TESTED.items()
    )
    return ConfigError(
        f"TensorFlow {tf.__version__} and Keras {keras.__version__} have no {path}, which is used "
        f"here. The tested versions are TensorFlow {TESTED['tensorflow'][0]} and Keras "
        f"{TESTED['keras'][0]}. Install these: pip install {requirements}"
    )


TrackableObjectGraph = _find(
    "tensorflow.core.protobuf.trackable_object_graph_pb2:TrackableObjectGraph"
)
freeze_variables = _find(
    "tensorflow.python.framework.convert_to_constants:convert_variables_to_constants_v2"
)
get_creation_path = _find("keras.src.backend.common.name_scope:current_path")
"""Returns the path of the Keras variable that is being created."""
_get_context = _find("tensorflow.python.eager.context:context")
_get_resources = _find(
    "tensorflow.python.framework.auto_control_deps_utils:get_read_write_resource_inputs"
)
"""Returns the handles of the variables that an operation reads, and of those that it writes."""

_COLLECTIVE = "tensorflow.python.distribute.collective_all_reduce_strategy"
_SEND = "_get_variable_creator_initial_value"
for _path in (
    f"{_COLLECTIVE}:CollectiveAllReduceExtended._initialize_local_devices",
    f"{_COLLECTIVE}:CollectiveAllReduceExtended.{_SEND}",
    "tensorflow:compat.v1.ConfigProto.Experimental.DISABLE_THREAD_SPINNING_FIELD_NUMBER",
    "keras:Layer._flatten_layers",
    "keras:optimizers.Optimizer._all_reduce_sum_gradients",
    "keras:optimizers.Optimizer._update_model_variables_moving_average",
    "keras:Model._symbolic_build",
    "keras:callbacks.ModelCheckpoint._is_improvement",
):
    _find(_path)
CollectiveAllReduceExtended = importlib.import_module(_COLLECTIVE).CollectiveAllReduceExtended
if _SEND not in vars(CollectiveAllReduceExtended):  # a base class has it, too
    raise _make_version_error(f"{_COLLECTIVE}:CollectiveAllReduceExtended.{_SEND}")
_initialize_context = _find("tensorflow.python.eager.context:Context.__init__")
if "_config" not in _initialize_context.__code__.co_names:  # only instances have this attribute
    raise _make_version_error("tensorflow.python.eager.context:Context._config")


def disable_thread_spinning() -> None:
    """Makes idle threads of TensorFlow sleep at once. Must precede the first operation."""
    config = tf.compat.v1.ConfigProto()
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


def send_all_types(strategy: tf.distribute.MultiWorkerMirroredStrategy) -> None:
    """Makes the strategy create variables of any type: small ones travel as larger ones."""
    original = strategy.extended._get_variable_creator_initial_value

    def get_initial_value(**options: Any) -> Callable[[], tf.Tensor]:
        initial, dtype = options["initial_value"], tf.as_dtype(options.get("dtype") or tf.float32)
        if dtype in _SENT:
            return original(**options)

        def widen() -> tf.Tensor:
            value = initial() if callable(initial) else initial
            return tf.cast(tf.convert_to_tensor(value, dtype), wide)

        wide = tf.int64 if dtype.is_integer else tf.float32
        create = original(**options | {"initial_value": widen, "dtype": wide})
        return lambda: tf.cast(create(), dtype)

    strategy.extended._get_variable_creator_initial_value = get_initial_value


def count_local_replicas(strategy: tf.distribute.Strategy) -> int:
    values = strategy.experimental_distribute_values_from_function(lambda _context: 0.0)
    return len(strategy.experimental_local_results(values))


def list_layers(model: keras.Model) -> list[keras.Layer]:
    """Returns all layers below a model, those inside of other layers included."""
    return list(model._flatten_layers(include_self=False))


def keep_gradients(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes `apply_gradients` take gradients that are summed over all replicas already."""
    optimizer._all_reduce_sum_gradients = lambda gradients: gradients


def sum_gradients_first(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes an optimizer add up gradients over all replicas before it clips them.

    Those of an `Embedding` are added up for each row as well. Keras's optimizers would square each
    replica's part of a row.
    """
    apply = optimizer.apply

    def apply_sums(gradients: Any, variables: Any = None) -> None:
        own = [*gradients]
        known = [tf.convert_to_tensor(each) for each in own if each is not None]
        context = tf.distribute.get_replica_context()
        sums = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, known) if known else [])
        apply([None if gradient is None else next(sums) for gradient in own], variables)

    optimizer.apply = apply_sums
    keep_gradients(optimizer)


def build_compiled_parts(model: keras.Model, batch: Any) -> None:
    """Creates the variables of a compiled model's loss, metrics and optimizer, as `fit` does.

    `batch` are images and labels, of which only shapes and types count.
    """
    model._symbolic_build(data_batch=batch)


def get_slots(optimizer: keras.optimizers.Optimizer) -> dict[str, list[keras.Variable]]:
    """Returns the slots of an optimizer, each with a variable for every weight.

    The optimizer is SGD, RMSprop, Adam or AdamW, and is built. The names are momentums, velocities
    and averages.
    """
    found: dict[str, list[keras.Variable]] = {}
    for variable in optimizer.variables:
        if slot := _SLOTS.get(variable.name.rpartition("_")[2]):
            found.setdefault(slot, []).append(variable)
    return found


def replace_average_update(
    optimizer: keras.optimizers.Optimizer, update: Callable[[Sequence[keras.Variable]], None]
) -> None:
    """Makes the optimizer update its averaged weights with `update`, given the weights."""
    optimizer._update_model_variables_moving_average = update


def list_assigned(
    variables: Sequence[keras.Variable], sources: Sequence[tf.Tensor] | None = None
) -> list[str]:
    """Lists the paths of the variables that the graph under construction writes so far.

    With `sources`, those whose new values depend on these tensors. None in eager execution.
    """
    if tf.executing_eagerly():
        return []
    graph = tf.compat.v1.get_default_graph()
    paths = {id(variable.value.handle): variable.path for variable in variables}
    inside = {
        id(placeholder): paths[id(outside)]
        for outside, placeholder in graph.captures
        if id(outside) in paths
    }
    found = {
        inside[id(handle)]
        for each in graph.get_operations()
        for handle in _get_resources(each)[1]
        if id(handle) in inside and (sources is None or _depends_on(each, sources))
    }
    return [path for path in paths.values() if path in found]


def _depends_on(operation: tf.Operation, sources: Sequence[tf.Tensor]) -> bool:
    """Returns whether one of the tensors is among the inputs of an operation, or before them."""
    wanted, waiting, seen = {id(each.op) for each in sources}, [operation], set[int]()
    while waiting:
        for before in (tensor.op for tensor in waiting.pop().inputs):
            if id(before) in wanted:
                return True
            if id(before) not in seen:
                seen.add(id(before))
                waiting.append(before)
    return False


def compare_only_finite(callback: keras.callbacks.Callback) -> None:
    """Makes a callback that monitors a figure take NaN and infinity for no improvement."""
    compare = callback._is_improvement
    callback._is_improvement = lambda value, best: math.isfinite(value) and compare(value, best)


def will_profile(callback: keras.callbacks.TensorBoard) -> bool:
    """Returns whether the callback profiles some batches."""
    return bool(callback._should_trace)


def list_remembered(callback: keras.callbacks.Callback) -> set[str]:
    """Returns the attributes in which a callback of Keras remembers earlier epochs and batches."""
    kinds = (kind for kind in _REMEMBERED if isinstance(callback, kind))
    return {name for kind in kinds for name in _REMEMBERED[kind]}
