"""Wide layers divided among the devices of one worker: weights as DTensors on a device mesh.

`train.sharding` maps weights to the axis along which they are divided. All other weights and the
batches are on every device. DTensor's compiler inserts the exchange between the devices. Keras's
own `ModelParallel` has no effect on TensorFlow, so the model is called as a function of its
weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.models.task import BatchSums, Task
from pipeline_ops.training.loops.loop import Batches, StepResult, are_finite, cast_to_float
from pipeline_ops.training.loops.sharded import ShardedLoop, total_sums
from pipeline_ops.training.optimizer import VariableShards, read_variable
from pipeline_ops.training.placement import find_match, find_unmatched

_AXIS = "devices"


def build_sharding_specs(
    shapes: Mapping[str, Sequence[int]], sharding: Mapping[str, int], num_devices: int
) -> dict[str, list[str]]:
    """Returns the DTensor sharding spec of each weight, by path.

    Args:
      shapes: The shapes of the weights, by path, such as `sequential/hidden/kernel`.
      sharding: The axis by pattern. The first pattern that matches a path counts.

    Raises:
      ConfigError: A pattern matches no weight, or a weight cannot be divided along its axis.
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
    if unused := find_unmatched(sharding, shapes):
        raise ConfigError(
            f"train.sharding: no weight matches {', '.join(unused)}. "
            f"The weights are {', '.join(shapes)}."
        )
    return specs


class DTensorLoop(ShardedLoop):
    """The loop of the strategy `dtensor`."""

    def __init__(self, model: keras.Model, task: Task, config: Train, devices: Sequence[str]):
        self._mesh = dtensor.create_mesh(
            [(_AXIS, len(devices))], devices=[device.strip("/").upper() for device in devices]
        )
        self._specs = build_sharding_specs(
            {variable.path: variable.shape for variable in model.weights},
            config.sharding,
            len(devices),
        )
        super().__init__(model, task, config)

    def _create(self, variable: keras.Variable) -> VariableShards:
        spec = self._specs.get(variable.path, [dtensor.UNSHARDED] * len(variable.shape))
        layout = dtensor.Layout(spec, self._mesh)
        return [dtensor.DVariable(self._copy_to_mesh(variable.numpy(), layout))]

    def _create_like(self, shard: tf.Variable | None) -> tf.Variable:
        if shard is None:
            return dtensor.DVariable(self._copy_to_mesh(np.int64(0)))
        return dtensor.DVariable(
            self._copy_to_mesh(np.zeros(shard.shape, np.float32), shard.layout)
        )

    def _read(self, shards: VariableShards) -> np.ndarray:
        return self._read_from_mesh(shards[0].read_value())

    def _write(self, shards: VariableShards, value: np.ndarray) -> None:
        shards[0].assign(self._copy_to_mesh(value, shards[0].layout))

    def _copy_to_mesh(self, value: Any, layout: dtensor.Layout | None = None) -> tf.Tensor:
        """Copies a value from the host to all devices, and divides it there."""
        replicated = dtensor.Layout.replicated(
            self._mesh, np.ndim(value) if layout is None else layout.rank
        )
        copied = dtensor.copy_to_mesh(value, replicated)
        return copied if layout is None else dtensor.relayout(copied, layout)

    def _copy_all_to_mesh(self, *values: Any) -> Any:
        return tf.nest.map_structure(self._copy_to_mesh, values)

    def _read_from_mesh(self, value: tf.Tensor) -> np.ndarray:
        gathered = dtensor.relayout(value, dtensor.Layout.replicated(self._mesh, len(value.shape)))
        return np.array(dtensor.unpack(gathered)[0])

    def train(
        self, batches: Batches, step: int, learning_rates: Sequence[float], stop: float = 0.0
    ) -> StepResult:
        results = [
            self._take_step(next(batches), step + number, rate)
            for number, rate in enumerate(learning_rates)
        ]
        return StepResult(
            total_sums([result.sums for result in results]),
            all(result.is_finite for result in results),
            stop > 0,
            max(result.worst_loss for result in results),
        )

    def _take_step(self, batch: Any, step: int, learning_rate: float) -> StepResult:
        states = self._generators.compute_states(step, 0)
        try:
            step_sums, is_finite = self._step(
                *self._copy_all_to_mesh(*batch, states, np.float32(learning_rate))
            )
        except tf.errors.UnknownError as error:
            raise self._explain_error(error) from error
        sums = BatchSums(*map(self._read_from_mesh, step_sums))
        return StepResult(
            sums, bool(self._read_from_mesh(is_finite)), False, float(sums.loss / sums.count)
        )

    def _explain_error(self, error: Exception) -> Exception:
        """Turns an error of DTensor's compiler into the error to raise.

        The compiler does not support every operation in every layout, and fails when a step is
        compiled.
        """
        text = " ".join(str(error).split())
        if "layout" not in text:
            return error
        unknown = re.search(r"'(tf\.\w+)' op does not implement layout propagation", text)
        reason = f"it does not support {unknown[1]}" if unknown else text[:300]
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
        sums, gradients = self._differentiate(values, states, features, labels)
        # The new values are not read again, because a read may come before the write.
        new_values = self._optimizer.apply(gradients, learning_rate)
        return sums, are_finite(new_values)

    def evaluate(self, batches: tf.data.Dataset) -> BatchSums:
        # Draws no numbers, but the model as a function takes all of its variables.
        unused = self._generators.compute_states(0, 0)
        sums = [self._evaluate_batch(*self._copy_all_to_mesh(*batch, unused)) for batch in batches]
        return total_sums([BatchSums(*map(self._read_from_mesh, each)) for each in sums])

    @tf.function(reduce_retracing=True, autograph=False)
    def _evaluate_batch(self, features: Any, labels: Any, states: list[tf.Tensor]) -> BatchSums:
        weights = self._optimizer.averages or self._trainable
        other_values = self._generators.merge_states(
            states, [read_variable(shards) for shards in self._other_variables]
        )
        outputs, _ = self.model.stateless_call(
            [read_variable(shards) for shards in weights],
            other_values,
            cast_to_float(features),
            training=False,
        )
        return self._task.compute_batch_sums(outputs, labels, training=False)
