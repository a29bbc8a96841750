"""Training with parameter servers: workers compute gradients and update weights on the servers.

The chief schedules one global batch per step. Workers do not wait for one another. With several of
them, the order of the updates, and with it the result, differs between runs. With one worker, the
result is that of one device. Every example comes once per epoch, and another worker takes over the
step of a lost one.

A large weight lies in pieces on several servers. Checkpoints hold the whole weight, so a training
can resume with any number of servers, or under another strategy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.config.train import Train
from pipeline_ops.models.task import Task, num_sums
from pipeline_ops.training.checkpointing.state import Arrays
from pipeline_ops.training.gradients import as_floats, in_micro_batches
from pipeline_ops.training.loops.synchronous import Taken
from pipeline_ops.training.random_numbers import Generators
from pipeline_ops.training.sharded_optimizer import (
    Pieces,
    PiecewiseOptimizer,
    checkpoint_order,
    read,
)


class ParameterServerLoop:
    """The chief's loop, with the methods of `Loop` in `synchronous.py`.

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
        self._strategy, self.model, self._task, self._config = strategy, model, task, config
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._generators = Generators(model)
        self._pieces = {
            variable.path: self._on_servers(variable)
            for variable in (*model.trainable_variables, *self._generators.others)
        }
        self._trainable = [self._pieces[variable.path] for variable in model.trainable_variables]
        self._others = [self._pieces[variable.path] for variable in self._generators.others]
        self._optimizer = PiecewiseOptimizer(config.optimizer, self._trainable, self._like)
        self._order = checkpoint_order(config.optimizer, model)

    def _on_servers(self, variable: keras.Variable) -> Pieces:
        with self._strategy.scope():
            created = tf.Variable(variable.numpy())
        return list(getattr(created, "variables", [created]))

    def _like(self, piece: tf.Variable | None) -> tf.Variable:
        with self._strategy.scope():
            if piece is None:
                return tf.Variable(np.int64(0))
            with self._strategy.extended.colocate_vars_with(piece):
                return tf.Variable(tf.zeros(piece.shape))

    def train(
        self, batches: Iterator, step: int, learning_rates: Sequence[float], stop: float = 0.0
    ) -> Taken:
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
        sums = np.array(self._coordinator.fetch(steps))
        return Taken(
            sums.sum(axis=0),
            bool(self._coordinator.fetch(is_finite)),
            stop > 0,
            float(np.max(sums[:, 0] / sums[:, -1])),
        )

    def train_on(self, batch: Any, step: int, learning_rate: float) -> Taken:
        return self.train(iter([batch]), step, [learning_rate])

    @tf.function(reduce_retracing=True)
    def _step(
        self, features: Any, labels: Any, step: tf.Tensor, learning_rate: tf.Tensor
    ) -> tf.Tensor:
        """Runs on a worker."""
        values = [read(pieces) for pieces in self._trainable]

        def differentiate(
            number: int | tf.Tensor, features: Any, labels: Any
        ) -> tuple[tf.Tensor, list[tf.Tensor]]:
            with tf.GradientTape() as tape:
                tape.watch(values)
                others = self._generators.with_states(
                    self._generators.states_of(step, number),
                    [read(pieces) for pieces in self._others],
                )
                outputs, others, losses = self.model.stateless_call(
                    values, others, as_floats(features), training=True, return_losses=True
                )
                sums = self._task.batch_sums(outputs, labels, training=True)
                loss = (
                    sums[0] / self._config.global_batch + sum(losses) / self._config.micro_batches
                )
            for pieces, value in zip(
                self._others, self._generators.without_states(others), strict=True
            ):
                _assign(pieces, value)
            return sums, [
                tf.convert_to_tensor(g)
                for g in tape.gradient(
                    loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO
                )
            ]

        sums, gradients = in_micro_batches(
            self._config.micro_batches,
            differentiate,
            features,
            labels,
            [value.shape for value in values],
            num_sums(self._task),
        )
        self._optimizer.apply(gradients, learning_rate)
        return sums

    @tf.function
    def _are_finite(self) -> tf.Tensor:
        return tf.reduce_all(
            [
                tf.reduce_all(tf.math.is_finite(piece.read_value()))
                for pieces in self._trainable
                for piece in pieces
            ]
        )

    def evaluate(self, batches: tf.data.Dataset) -> np.ndarray:
        """Evaluates on the chief alone, with its own copy of the weights."""
        for variable, value in zip(self.model.weights, self.best_weights(), strict=True):
            variable.assign(value)
        return np.sum([self._evaluate_batch(*batch).numpy() for batch in batches], axis=0)

    @tf.function(reduce_retracing=True)
    def _evaluate_batch(self, features: Any, labels: Any) -> tf.Tensor:
        return self._task.batch_sums(
            self.model(as_floats(features), training=False), labels, training=False
        )

    def weights(self) -> Arrays:
        return [read(self._pieces[variable.path]).numpy() for variable in self.model.weights]

    def best_weights(self) -> Arrays:
        averages = dict(
            zip(
                (variable.path for variable in self.model.trainable_variables),
                self._optimizer.averages or (),
                strict=False,
            )
        )
        return [
            read(averages.get(variable.path, self._pieces[variable.path])).numpy()
            for variable in self.model.weights
        ]

    def optimizer_values(self) -> Arrays:
        rate = np.float32(self._config.optimizer.learning_rate)
        return [
            rate if name == "learning_rate" else read(self._slot(name, index)).numpy()
            for name, index in self._order
        ]

    def _slot(self, name: str, index: int) -> Pieces:
        return (
            [self._optimizer.iterations]
            if name == "iterations"
            else self._optimizer.slots[name][index]
        )

    def assign(self, weights: Arrays, optimizer_values: Arrays | None = None) -> None:
        for variable, value in zip(self.model.weights, weights, strict=True):
            _assign(self._pieces[variable.path], value)
        if optimizer_values is not None:
            for place, value in zip(self._order, optimizer_values, strict=True):
                if place[0] != "learning_rate":  # the loop sets it in every step
                    _assign(self._slot(*place), value)


def _assign(pieces: Pieces, value: Any) -> None:
    parts = [value] if len(pieces) == 1 else tf.split(value, [piece.shape[0] for piece in pieces])
    for piece, part in zip(pieces, parts, strict=True):
        piece.assign(part)


def serve(tf_config_resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
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
