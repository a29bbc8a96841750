"""Wide layers divided among the devices of one worker: weights as DTensors on a device mesh.

`train.sharding` maps weights to the axis along which they are divided. All other weights and the
batches are on every device. DTensor's compiler inserts the exchange between the devices. Keras's
own `ModelParallel` has no effect on TensorFlow, so the model is called as a function of its
weights.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.models.task import Task
from pipeline_ops.training.checkpointing.state import Arrays
from pipeline_ops.training.gradients import as_floats
from pipeline_ops.training.loops.synchronous import Taken
from pipeline_ops.training.random_numbers import Generators
from pipeline_ops.training.sharded_optimizer import PiecewiseOptimizer, checkpoint_order

_AXIS = "devices"


def sharding_specs(
    shapes: Mapping[str, Sequence[int]], sharding: Mapping[str, int], num_devices: int
) -> dict[str, list[str]]:
    """The DTensor sharding spec of each weight, by path.

    Args:
      shapes: The shapes of the weights, by path, such as `sequential/hidden/kernel`.
      sharding: The axis by pattern. The first pattern that matches a path counts.
      num_devices: The number of devices.

    Raises:
      ConfigError: A pattern matches no weight, or a weight cannot be divided along its axis.
    """
    specs = {}
    for path, shape in shapes.items():
        axis = next(
            (axis for pattern, axis in sharding.items() if fnmatch.fnmatchcase(path, pattern)), None
        )
        specs[path] = [dtensor.UNSHARDED] * len(shape)
        if axis is not None:
            if not 0 <= axis < len(shape) or shape[axis] % num_devices:
                raise ConfigError(
                    f"train.sharding: the weight {path} of shape {tuple(shape)} can't be divided "
                    f"among {num_devices} devices along axis {axis}"
                )
            specs[path][axis] = _AXIS
    if unused := [
        pattern
        for pattern in sharding
        if not any(fnmatch.fnmatchcase(path, pattern) for path in shapes)
    ]:
        raise ConfigError(
            f"train.sharding: no weight matches {', '.join(unused)}; "
            f"the weights are {', '.join(shapes)}"
        )
    return specs


class ShardedLoop:
    """The loop of `sharded_layers`, with the methods of `Loop` in `synchronous.py`.

    Args:
      model: The model, built for one device. It serves as a function, and for its initial weights.
      task: The task to train for.
      config: The training section.
      devices: The devices of this worker.
    """

    def __init__(self, model: keras.Model, task: Task, config: Train, devices: Sequence[str]):
        self.model, self._task, self._config = model, task, config
        self._mesh = dtensor.create_mesh(
            [(_AXIS, len(devices))], devices=[device.strip("/").upper() for device in devices]
        )
        self._specs = sharding_specs(
            {variable.path: variable.shape for variable in model.weights},
            config.sharding,
            len(devices),
        )
        self._generators = Generators(model)
        self._variables = {
            variable.path: self._on_mesh(variable)
            for variable in (*model.trainable_variables, *self._generators.others)
        }
        self._trainable = [self._variables[variable.path] for variable in model.trainable_variables]
        self._others = [self._variables[variable.path] for variable in self._generators.others]
        self._optimizer = PiecewiseOptimizer(
            config.optimizer, [[variable] for variable in self._trainable], self._like
        )
        self._order = checkpoint_order(config.optimizer, model)

    def _on_mesh(self, variable: keras.Variable) -> dtensor.DVariable:
        spec = self._specs.get(variable.path, [dtensor.UNSHARDED] * len(variable.shape))
        return dtensor.DVariable(self._put(variable.numpy(), dtensor.Layout(spec, self._mesh)))

    def _like(self, variable: dtensor.DVariable | None) -> dtensor.DVariable:
        if variable is None:
            return dtensor.DVariable(self._put(np.int64(0)))
        return dtensor.DVariable(self._put(np.zeros(variable.shape, np.float32), variable.layout))

    def _put(self, value: Any, layout: dtensor.Layout | None = None) -> tf.Tensor:
        """Copies a value from the host to all devices, and divides it there."""
        everywhere = dtensor.Layout.replicated(
            self._mesh, np.ndim(value) if layout is None else layout.rank
        )
        copied = dtensor.copy_to_mesh(value, everywhere)
        return copied if layout is None else dtensor.relayout(copied, layout)

    def _get(self, value: tf.Tensor) -> np.ndarray:
        whole = dtensor.relayout(value, dtensor.Layout.replicated(self._mesh, len(value.shape)))
        return dtensor.unpack(whole)[0].numpy()

    def train(
        self, batches: Iterator, step: int, learning_rates: Sequence[float], stop: float = 0.0
    ) -> Taken:
        taken = [
            self.train_on(next(batches), step + number, rate)
            for number, rate in enumerate(learning_rates)
        ]
        return Taken(
            np.sum([one.sums for one in taken], axis=0),
            all(one.is_finite for one in taken),
            stop > 0,
            max(one.worst_loss for one in taken),
        )

    def train_on(self, batch: Any, step: int, learning_rate: float) -> Taken:
        states = self._generators.states_of(step, 0)
        try:
            sums, is_finite = self._step(
                *tf.nest.map_structure(self._put, (*batch, states, np.float32(learning_rate)))
            )
        except tf.errors.UnknownError as error:
            raise self._refused(error) from error
        sums = self._get(sums)
        return Taken(sums, bool(self._get(is_finite)), False, float(sums[0] / sums[-1]))

    def _refused(self, error: tf.errors.UnknownError) -> Exception:
        """Turns an error of DTensor's compiler into the error to raise.

        The compiler does not support every operation in every layout, and fails when a step is
        compiled.
        """
        text = " ".join(str(error).split())
        if "layout" not in text:
            return error
        unknown = re.search(r"'(tf\.\w+)' op does not implement layout propagation", text)
        reason = f"it does not know {unknown[1]}" if unknown else text[:300]
        return ConfigError(
            "train.strategy sharded_layers: TensorFlow's DTensor can't compute "
            f"{self._config.model} with its weights divided like this: {reason}; "
            "divide other weights in train.sharding, replace the layer, or take another strategy"
        )

    @tf.function(reduce_retracing=True)
    def _step(
        self, features: Any, labels: Any, states: list[tf.Tensor], learning_rate: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        sums, gradients = self._differentiate(features, labels, states)
        after = self._optimizer.apply(
            gradients, learning_rate
        )  # not read again, because a read may come before the write
        return sums, tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in after])

    def _differentiate(
        self, features: Any, labels: Any, states: list[tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        values = [variable.read_value() for variable in self._trainable]
        with tf.GradientTape() as tape:
            tape.watch(values)
            others = self._generators.with_states(
                states, [variable.read_value() for variable in self._others]
            )
            outputs, others, losses = self.model.stateless_call(
                values, others, as_floats(features), training=True, return_losses=True
            )
            sums = self._task.batch_sums(outputs, labels, training=True)
            loss = sums[0] / self._config.global_batch + sum(losses)
        for variable, value in zip(
            self._others, self._generators.without_states(others), strict=True
        ):
            variable.assign(value)
        return sums, tape.gradient(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    def evaluate(self, batches: tf.data.Dataset) -> np.ndarray:
        unused = self._generators.states_of(
            0, 0
        )  # draws no numbers, but the model as a function takes all of its variables
        return np.sum(
            [
                self._get(self._evaluate_batch(*tf.nest.map_structure(self._put, (*batch, unused))))
                for batch in batches
            ],
            axis=0,
        )

    @tf.function(reduce_retracing=True)
    def _evaluate_batch(self, features: Any, labels: Any, states: list[tf.Tensor]) -> tf.Tensor:
        averages = self._optimizer.averages
        values = (
            [pieces[0].read_value() for pieces in averages]
            if averages
            else [variable.read_value() for variable in self._trainable]
        )
        others = self._generators.with_states(
            states, [variable.read_value() for variable in self._others]
        )
        outputs, _ = self.model.stateless_call(values, others, as_floats(features), training=False)
        return self._task.batch_sums(outputs, labels, training=False)

    def weights(self) -> Arrays:
        return [
            self._get(self._variables[variable.path].read_value())
            for variable in self.model.weights
        ]

    def best_weights(self) -> Arrays:
        averages = dict(
            zip(
                (variable.path for variable in self.model.trainable_variables),
                self._optimizer.averages or (),
                strict=False,
            )
        )
        pieces = (
            averages.get(variable.path, [self._variables[variable.path]])
            for variable in self.model.weights
        )
        return [self._get(piece.read_value()) for (piece,) in pieces]

    def optimizer_values(self) -> Arrays:
        rate = np.float32(self._config.optimizer.learning_rate)
        return [
            rate if name == "learning_rate" else self._get(self._slot(name, index).read_value())
            for name, index in self._order
        ]

    def _slot(self, name: str, index: int) -> dtensor.DVariable:
        return (
            self._optimizer.iterations
            if name == "iterations"
            else self._optimizer.slots[name][index][0]
        )

    def assign(self, weights: Arrays, optimizer_values: Arrays | None = None) -> None:
        pairs = [
            (self._variables[variable.path], value)
            for variable, value in zip(self.model.weights, weights, strict=True)
        ]
        if optimizer_values is not None:
            named = zip(self._order, optimizer_values, strict=True)
            pairs += [
                (self._slot(*place), value) for place, value in named if place[0] != "learning_rate"
            ]
        for variable, value in pairs:
            variable.assign(self._put(value, variable.layout))
