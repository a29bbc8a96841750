"""Loops whose weights are shards: on parameter servers, or on the devices of a mesh.

The model is built for one device and serves as a function of its weights. Checkpoints hold whole
weights, so a training can resume under any strategy, and with any number of servers.

On a mesh, the weights are DTensors. `train.sharding` maps weights to the axis along which they are
divided among the devices of one worker. All other weights and the batches are on every device.
DTensor's compiler inserts the exchange between the devices. Keras's own `ModelParallel` has no
effect on TensorFlow.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError, TrainyardError
from pipeline_ops.models.task import BatchSums, Task, add_sums
from pipeline_ops.models.user_errors import describe_call
from pipeline_ops.training.loop import (
    Batches,
    Loop,
    PartResult,
    StepResult,
    add_change,
    add_losses,
    are_finite,
    cast_to_float,
    join_verdicts,
    make_change,
    refuse_assigned,
    to_arrays,
)
from pipeline_ops.training.optimizer import (
    ShardedOptimizer,
    VariableShards,
    read_variable,
    write_variable,
)
from pipeline_ops.training.strategy import check_matches, find_match
from pipeline_ops.training.weight_files import Arrays

_AXIS = "devices"


def total_sums(sums: Sequence[BatchSums]) -> BatchSums:
    """Returns the sum of at least one batch's sums, as arrays."""
    return functools.reduce(add_sums, map(to_arrays, sums))


def make_result(steps: Sequence[tuple[BatchSums, Any]], stop: float) -> StepResult:
    """Combines the sums of one or more steps, and whether each is sound, into one result."""
    sums = [each for each, _ in steps]
    is_sound = all(bool(sound) for _, sound in steps)
    worst_loss = max(float(each.loss / each.count) for each in sums)
    return StepResult(total_sums(sums), is_sound, stop > 0, worst_loss)


class _CallScope(keras.StatelessScope):
    """A scope in which a model is a function, which collects what its layers assign.

    As with a variable, no gradient passes through an assignment. Layers such as
    `SpectralNormalization` assign weights that learn. The gradient of such a weight is that of all
    values it has in the call. `assigned` has the new ones, by position in `trainable`.
    """

    def __init__(
        self,
        tape: tf.GradientTape,
        trainable: Sequence[keras.Variable],
        values: Iterable[tuple[keras.Variable, Any]],
    ):
        super().__init__(state_mapping=list(values), collect_losses=True)
        self._tape, self._position = tape, {id(each): n for n, each in enumerate(trainable)}
        self.assigned: dict[int, tf.Tensor] = {}

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        variable, value = update[0], tf.stop_gradient(update[1])
        position = self._position.get(id(variable))
        if position is not None:
            self._tape.watch(value)
            self.assigned[position] = value
        super().add_update((variable, value))


class ShardedLoop(Loop):
    """A loop with weights and optimizer as shards."""

    def __init__(self, model: keras.Model, task: Task, config: Train):
        super().__init__(model, task, config)
        drawing = {id(state) for state in self._generators.states}
        self._shards = {
            id(variable): self._create(variable.numpy(), variable.path)
            for variable in model.variables
            if id(variable) not in drawing
        }
        self._weights = self._get_shards(model.weights)
        self._trainable = self._get_shards(model.trainable_variables)
        self._optimizer = ShardedOptimizer(
            config.optimizer,
            model.trainable_variables,
            self._trainable,
            lambda value: self._create(value)[0],
            self._create_zeros,
        )
        self._optimizer_variables = self._optimizer.variables
        self._optimizer_paths = self._optimizer.paths
        self._averages = self._optimizer.averages or self._trainable
        average_of = {
            id(shards): average
            for shards, average in zip(self._trainable, self._averages, strict=True)
        }
        self._best_weights = [average_of.get(id(shards), shards) for shards in self._weights]

    def _get_shards(self, variables: Iterable[keras.Variable]) -> list[VariableShards]:
        return [self._shards[id(variable)] for variable in variables]

    @abc.abstractmethod
    def _create(self, value: Any, path: str = "") -> VariableShards:
        """Creates the shards of the variable with the given path in the model."""

    def answer(self, images: tf.Tensor, weights: Arrays) -> list[np.ndarray]:
        self.model.set_weights(weights)  # its own copy
        return [np.asarray(each) for each in tf.nest.flatten(self.model(images, training=False))]

    def judge(self, batches: Iterable[Any]) -> np.ndarray:
        """Judges on the device of the model, with its own copy of the weights."""
        self.model.set_weights(self.get_best_weights())
        return join_verdicts(self._judge_batch(*batch) for batch in batches)

    @tf.function(reduce_retracing=True, autograph=False)
    def _judge_batch(self, features: Any, labels: Any) -> tf.Tensor:
        return self._compute_verdicts(features, labels)

    @abc.abstractmethod
    def _create_zeros(self, shard: tf.Variable) -> tf.Variable:
        """Creates zeros of the shape and type of the given shard, and on its device."""

    def _read_others(self, seed_states: Sequence[tf.Tensor]) -> list[tuple[keras.Variable, Any]]:
        """Returns the variables that do not learn, with their values."""
        learning = set(map(id, self.model.trainable_variables))
        return [
            *zip(self._generators.states, seed_states, strict=True),
            *(
                (variable, read_variable(self._shards[id(variable)]))
                for variable in self.model.variables
                if id(variable) in self._shards and id(variable) not in learning
            ),
        ]

    @contextlib.contextmanager
    def _explain_calls(self) -> Iterator[None]:
        """Turns an error of a layer that is no function of its variables into a ConfigError."""
        try:
            yield
        except TrainyardError:
            raise
        except Exception as error:  # a user's code may raise any exception
            raise ConfigError(
                f"train.strategy {self._config.strategy}: {self._config.model} cannot be called as "
                f"a function of its weights: {describe_call(error)}. Here a layer may change a "
                "variable only by self.variable.assign(value), outside of tf.cond and "
                "tf.while_loop and not through .value. Change the layer, or choose another "
                "strategy."
            ) from error

    def _differentiate(
        self,
        values: Sequence[tf.Tensor],
        seed_states: Sequence[tf.Tensor],
        number: int | tf.Tensor,
        features: Any,
        labels: Any,
    ) -> tuple[PartResult, dict[int, tf.Tensor]]:
        """Returns the result of a micro-batch, and what layers assign to weights that learn.

        The weights are given as `values`. Raises ConfigError if micro-batches would each assign.
        """
        trainable, count = self.model.trainable_variables, self._config.micro_batches
        with self._explain_calls(), tf.GradientTape() as tape:
            tape.watch(values)
            others = self._read_others(seed_states)
            pairs = [*zip(trainable, values, strict=True), *others]
            with _CallScope(tape, trainable, pairs) as scope:
                outputs = self.model(cast_to_float(features), training=True)
                losses = self.model.losses
            sums = self._task.compute_batch_sums(outputs, labels, training=True)
            # Regularizers are the same for every micro-batch.
            loss = sums.loss / self._config.batch_size + add_losses(losses) / count
        if scope.assigned and count > 1:
            refuse_assigned(self._config, [trainable[n].path for n in scope.assigned])
        found = tape.gradient(loss, [*values, *scope.assigned.values()])
        gradients = found[: len(values)]
        for position, more in zip(scope.assigned, found[len(values) :], strict=True):
            # Rows that are looked up have sparse gradients, which cannot be added to dense ones.
            known = [
                tf.convert_to_tensor(each)
                for each in (gradients[position], more)
                if each is not None
            ]
            gradients[position] = tf.add_n(known) if known else None
        old = {id(variable): value for variable, value in others}
        with self._explain_calls():
            changes = [
                make_change(scope.get_current_value(state), old[id(state)], number, count)
                for state in self._states
            ]
        return PartResult(sums, self._fill_gradients(gradients), changes), scope.assigned

    def _apply(
        self, part: PartResult, learning_rate: tf.Tensor, assigned: Mapping[int, tf.Tensor]
    ) -> tf.Tensor:
        """Updates all variables. Returns whether the new weights and the sums are finite."""
        for shards, change in zip(self._get_shards(self._states), part.changes, strict=True):
            write_variable(shards, add_change(read_variable(shards), change))
        # The new values are not read again, because a read may come before the write.
        new = self._optimizer.apply(part.gradients, learning_rate, assigned, self._unused)
        return are_finite([*new, *part.sums])


class ParameterServerLoop(ShardedLoop):
    """The chief's loop of the strategy `parameter_server`.

    Workers compute gradients and update weights on the servers. The chief schedules one global
    batch per step, and workers do not wait for one another. With several of them, the order of the
    updates, and with it the result, differs between runs. With one worker, the result is that of
    one device. Every example comes once per epoch, and another worker takes over the step of a lost
    one.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, model: keras.Model, task: Task, config: Train
    ):
        self._strategy = strategy
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        super().__init__(model, task, config)

    def _create(self, value: Any, path: str = "") -> VariableShards:
        with self._strategy.scope():
            created = tf.Variable(value)
        return list(getattr(created, "variables", [created]))

    def _create_zeros(self, shard: tf.Variable) -> tf.Variable:
        with self._strategy.scope(), self._strategy.extended.colocate_vars_with(shard):
            return tf.Variable(tf.zeros(shard.shape, shard.dtype))

    def _read(self, shards: VariableShards) -> tf.Tensor:
        return read_variable(shards)

    def _write(self, shards: VariableShards, value: np.ndarray) -> None:
        write_variable(shards, value)

    def train(
        self, batches: Batches, step: int, learning_rates: Sequence[float], stop: float = 0.0
    ) -> StepResult:
        """Schedules the steps and waits for all of them, so a save or an evaluation can follow."""
        steps = []
        for number, rate in enumerate(learning_rates):
            arguments = *next(batches), tf.constant(step + number), tf.constant(rate, tf.float32)
            steps.append(self._coordinator.schedule(self._step, arguments))
        self._coordinator.join()
        return make_result(self._coordinator.fetch(steps), stop)

    @tf.function(reduce_retracing=True, autograph=False)
    def _step(
        self, features: Any, labels: Any, step: tf.Tensor, learning_rate: tf.Tensor
    ) -> tuple[BatchSums, tf.Tensor]:
        """Runs on a worker."""
        values = [read_variable(shards) for shards in self._trainable]
        assigned: dict[int, tf.Tensor] = {}

        def differentiate(number: int | tf.Tensor, features: Any, labels: Any) -> PartResult:
            states = self._generators.compute_states(step, number)
            part, new = self._differentiate(values, states, number, features, labels)
            assigned.update(new)
            return part

        part = self._accumulate(differentiate, features, labels)
        return part.sums, self._apply(part, learning_rate, assigned)

    def evaluate(self, batches: Iterable[Any]) -> BatchSums:
        """Evaluates on the chief alone, with its own copy of the weights."""
        self.model.set_weights(self.get_best_weights())
        return total_sums([self._evaluate_batch(*batch) for batch in batches])

    @tf.function(reduce_retracing=True, autograph=False)
    def _evaluate_batch(self, features: Any, labels: Any) -> BatchSums:
        return self._compute_evaluation_sums(features, labels)


def build_sharding_specs(
    shapes: Mapping[str, Sequence[int]], sharding: Mapping[str, int], num_devices: int
) -> dict[str, list[str]]:
    """Returns the DTensor sharding spec of each weight, by path.

    Paths are like `sequential/hidden/kernel`. `sharding` has the axis by pattern, and the first
    pattern that matches counts. Raises ConfigError if a pattern matches no weight, or a weight
    cannot be divided along its axis.
    """
    specs = {}
    for path, shape in shapes.items():
        specs[path] = [dtensor.UNSHARDED] * len(shape)
        axis = find_match(path, sharding)
        if axis is None:
            continue
        if not 0 <= axis < len(shape) or shape[axis] % num_devices:
            raise ConfigError(
                f"train.sharding: the weight {path} of shape {tuple(shape)} cannot be divided "
                f"among {num_devices} devices along axis {axis}. Choose an axis whose size is a "
                "multiple of train.devices_per_worker."
            )
        specs[path][axis] = _AXIS
    check_matches("train.sharding", sharding, "weight", list(shapes))
    return specs


class DTensorLoop(ShardedLoop):
    """The loop of the strategy `dtensor`."""

    def __init__(self, model: keras.Model, task: Task, config: Train, devices: Sequence[str]):
        self._mesh = dtensor.create_mesh(
            [(_AXIS, len(devices))], devices=[device.strip("/").upper() for device in devices]
        )
        shapes = {variable.path: variable.shape for variable in model.weights}
        self._specs = build_sharding_specs(shapes, config.sharding, len(devices))
        super().__init__(model, task, config)

    def _create(self, value: Any, path: str = "") -> VariableShards:
        if np.asarray(value).dtype == bool:
            raise ConfigError(
                f"train.strategy dtensor: {self._config.model} keeps the flag {path}, and "
                "TensorFlow's DTensor has no variables of the type bool. Make it an int32, or "
                "choose another strategy."
            )
        spec = self._specs.get(path, [dtensor.UNSHARDED] * np.ndim(value))
        layout = dtensor.Layout(spec, self._mesh)
        return [dtensor.DVariable(self._copy_to_mesh(value, layout))]

    def _create_zeros(self, shard: tf.Variable) -> tf.Variable:
        zeros = np.zeros(shard.shape, shard.dtype.as_numpy_dtype)
        return dtensor.DVariable(self._copy_to_mesh(zeros, shard.layout))

    def _read(self, shards: VariableShards) -> np.ndarray:
        return self._read_from_mesh(shards[0].read_value())

    def _write(self, shards: VariableShards, value: np.ndarray) -> None:
        shards[0].assign(self._copy_to_mesh(value, shards[0].layout))

    def _copy_to_mesh(self, value: Any, layout: dtensor.Layout | None = None) -> tf.Tensor:
        """Copies a value from the host to all devices, and divides it there."""
        copied = dtensor.copy_to_mesh(value, dtensor.Layout.replicated(self._mesh, np.ndim(value)))
        return copied if layout is None else dtensor.relayout(copied, layout)

    def _read_from_mesh(self, value: tf.Tensor) -> np.ndarray:
        gathered = dtensor.relayout(value, dtensor.Layout.replicated(self._mesh, len(value.shape)))
        return np.array(dtensor.unpack(gathered)[0])

    def train(
        self, batches: Batches, step: int, learning_rates: Sequence[float], stop: float = 0.0
    ) -> StepResult:
        steps = []
        for number, rate in enumerate(learning_rates):
            states = self._generators.compute_states(step + number, 0)
            arguments = (*next(batches), states, np.float32(rate))
            try:
                results = self._step(*tf.nest.map_structure(self._copy_to_mesh, arguments))
            except tf.errors.OpError as error:
                raise self._explain_error(error) from error
            steps.append(tf.nest.map_structure(self._read_from_mesh, results))
        return make_result(steps, stop)

    def _explain_error(self, error: Exception) -> Exception:
        """Turns an error of DTensor's compiler, which lacks some operations, into a ConfigError."""
        text = " ".join(str(error).split())
        constant = re.search(r"\(shape (\[.*?\])\) but was expecting a DTensor", text)
        if "layout" not in text and not constant:
            return error
        unknown = re.search(r"'(tf\.\w+)' op does not implement layout propagation", text)
        reason = f"it does not support {unknown[1]}" if unknown else text[:300]
        if constant:
            reason = f"a layer has a constant of the shape {constant[1]} that is no weight"
        return ConfigError(
            "train.strategy dtensor: TensorFlow's DTensor cannot compute "
            f"{self._config.model} with its weights divided like this: {reason}. "
            "Divide other weights in train.sharding, replace the layer, or choose another strategy."
        )

    @tf.function(reduce_retracing=True, autograph=False)
    def _step(
        self, features: Any, labels: Any, states: list[tf.Tensor], learning_rate: tf.Tensor
    ) -> tuple[BatchSums, tf.Tensor]:
        values = [read_variable(shards) for shards in self._trainable]
        part, assigned = self._differentiate(values, states, 0, features, labels)
        return part.sums, self._apply(part, learning_rate, assigned)

    def evaluate(self, batches: Iterable[Any]) -> BatchSums:
        # Draws no numbers, but the model as a function takes all of its variables.
        states = self._generators.compute_states(0, 0)
        arguments = ((*batch, states) for batch in batches)
        found = [
            self._evaluate_batch(*tf.nest.map_structure(self._copy_to_mesh, each))
            for each in arguments
        ]
        return total_sums([tf.nest.map_structure(self._read_from_mesh, sums) for sums in found])

    @tf.function(reduce_retracing=True, autograph=False)
    def _evaluate_batch(self, features: Any, labels: Any, states: list[tf.Tensor]) -> BatchSums:
        averages = map(read_variable, self._averages)
        pairs = [
            *zip(self.model.trainable_variables, averages, strict=True),
            *self._read_others(states),
        ]
        with keras.StatelessScope(state_mapping=pairs):
            outputs = self.model(cast_to_float(features), training=False)
        return self._task.compute_batch_sums(outputs, labels, training=False)
