"""Training with parameter servers: workers compute gradients and update weights on the servers.

The chief schedules one global batch per step. Workers do not wait for one another. With several of
them, the order of the updates, and with it the result, differs between runs. With one worker, the
result is that of one device. Every example comes once per epoch, and another worker takes over the
step of a lost one.

A large weight is sharded over several servers. Checkpoints hold the whole weight, so a training can
resume with any number of servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.config.train import Train
from pipeline_ops.models.task import BatchSums, Task, zero_sums
from pipeline_ops.training.gradients import accumulate_gradients, cast_to_float
from pipeline_ops.training.loops.loop import Batches, StepResult
from pipeline_ops.training.loops.sharded import ShardedLoop, total_sums
from pipeline_ops.training.sharded_optimizer import VariableShards, read_variable, split_like


class ParameterServerLoop(ShardedLoop):
    """The chief's loop.

    Args:
      strategy: The strategy with the workers and the servers of the cluster.
      model: The model, built on the chief. It serves as a function, for its initial weights, and
        for evaluation.
      task: The task to train for.
      config: The training section.
    """

    def __init__(
        self,
        strategy: tf.distribute.ParameterServerStrategy,
        model: keras.Model,
        task: Task,
        config: Train,
    ):
        self._strategy = strategy
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        super().__init__(model, task, config)

    def _create(self, variable: keras.Variable) -> VariableShards:
        with self._strategy.scope():
            created = tf.Variable(variable.numpy())
        return list(getattr(created, "variables", [created]))

    def _create_like(self, shard: tf.Variable | None) -> tf.Variable:
        with self._strategy.scope():
            if shard is None:
                return tf.Variable(np.int64(0))
            with self._strategy.extended.colocate_vars_with(shard):
                return tf.Variable(tf.zeros(shard.shape))

    def _read(self, shards: VariableShards) -> np.ndarray:
        return np.array(read_variable(shards))

    def _write(self, shards: VariableShards, value: np.ndarray) -> None:
        for shard, part in zip(shards, split_like(shards, value), strict=True):
            shard.assign(part)

    def train(
        self, batches: Batches, step: int, learning_rates: Sequence[float], stop: float = 0.0
    ) -> StepResult:
        """Schedules the steps and waits for all of them, so a save or an evaluation can follow."""
        steps = [
            self._coordinator.schedule(
                self._step,
                args=(*next(batches), tf.constant(step + number), tf.constant(rate, tf.float32)),
            )
            for number, rate in enumerate(learning_rates)
        ]
        self._coordinator.join()
        is_finite = self._coordinator.schedule(self._are_finite)
        sums = self._coordinator.fetch(steps)
        return StepResult(
            total_sums(sums),
            bool(self._coordinator.fetch(is_finite)),
            stop > 0,
            max(float(each.loss / each.count) for each in sums),
        )

    @tf.function(reduce_retracing=True)
    def _step(
        self, features: Any, labels: Any, step: tf.Tensor, learning_rate: tf.Tensor
    ) -> BatchSums:
        """Runs on a worker."""
        values = [read_variable(shards) for shards in self._trainable]
        count = self._config.micro_batches

        def differentiate(
            number: int | tf.Tensor, features: Any, labels: Any
        ) -> tuple[BatchSums, list[tf.Tensor]]:
            states = self._generators.compute_states(step, number)
            return self._differentiate(values, states, features, labels, count)

        shapes = [value.shape for value in values]
        sums, gradients = accumulate_gradients(
            count, differentiate, features, labels, shapes, zero_sums(self._task)
        )
        self._optimizer.apply(gradients, learning_rate)
        return sums

    @tf.function
    def _are_finite(self) -> tf.Tensor:
        return tf.reduce_all(
            [
                tf.reduce_all(tf.math.is_finite(shard.read_value()))
                for shards in self._trainable
                for shard in shards
            ]
        )

    def evaluate(self, batches: tf.data.Dataset) -> BatchSums:
        """Evaluates on the chief alone, with its own copy of the weights."""
        self.model.set_weights(self.get_best_weights())
        return total_sums([self._evaluate_batch(*batch) for batch in batches])

    @tf.function(reduce_retracing=True)
    def _evaluate_batch(self, features: Any, labels: Any) -> BatchSums:
        return self._task.compute_batch_sums(
            self.model(cast_to_float(features), training=False), labels, training=False
        )


def run_server(tf_config_resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Serves the chief, as a worker or as a parameter server.

    Never returns. The launcher ends the process with the gang.
    """
    tf.distribute.Server(
        tf_config_resolver.cluster_spec(),
        job_name=tf_config_resolver.task_type,
        task_index=tf_config_resolver.task_id,
        protocol="grpc",
        start=True,
    ).join()
