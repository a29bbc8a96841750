"""The base of the loops: a model, its optimizer, and the steps of a strategy."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.config.train import Train
from pipeline_ops.models.task import BatchSums, Task, add_sums
from pipeline_ops.training.checkpoints import Arrays

_STATE = "seed_generator_state"
Batches = Iterator[tuple[Any, Any]]
"""Training batches of features and labels."""


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The result of one or more steps, the same on every worker."""

    sums: BatchSums
    is_finite: bool
    """Whether every weight is finite."""
    is_stop_requested: bool
    """Whether some worker was asked to stop."""
    worst_loss: float
    """The largest mean loss of a step."""

    @property
    def is_sound(self) -> bool:
        return self.is_finite and all(bool(np.isfinite(values).all()) for values in self.sums)


def to_arrays(sums: BatchSums) -> BatchSums:
    return BatchSums(*map(np.asarray, sums))


class SeedGenerators:
    """The random numbers of layers in training, of dropout above all, from seed, step and part.

    Keras's layers draw from generators with a state that advances with every draw. Here, every step
    sets the states. A training that resumes from a checkpoint therefore draws the same numbers as
    an uninterrupted one, although no checkpoint holds a state. Each replica draws its own, while
    Keras would give all replicas the same mask. Numbers that a model draws in another way, such as
    `tf.random.uniform`, are not repeated after a restart.

    A generator is known by the seed in its initial state, so this is created before the first step.
    `other_variables` are the model's non-trainable variables that are not states.
    """

    def __init__(self, model: keras.Model):
        variables = model.non_trainable_variables
        self._is_state = [variable.name == _STATE for variable in variables]
        self._states = [variable for variable in variables if variable.name == _STATE]
        self._seeds = [int(state.numpy()[0]) for state in self._states]
        self.other_variables: list[keras.Variable] = self.drop_states(variables)

    def set_states(self, step: int | tf.Tensor, part: int | tf.Tensor) -> None:
        """Sets the states for the beginning of a step. The layers advance them from there.

        `part` is the replica or the micro-batch. Each draws different numbers.
        """
        for state, value in zip(self._states, self.compute_states(step, part), strict=True):
            state.assign(value)

    def compute_states(self, step: int | tf.Tensor, part: int | tf.Tensor) -> list[tf.Tensor]:
        """Returns the states at the beginning of a step, int64 [2] each."""
        step, part = tf.cast(step, tf.int64), tf.cast(part, tf.int64)
        # Keras's seeds are smaller than 2**32.
        keys = [tf.stack([seed + part * 2**32, step]) for seed in self._seeds]
        return [
            tf.random.stateless_uniform([2], seed=key, minval=None, maxval=None, dtype=tf.int64)
            for key in keys
        ]

    def merge_states(
        self, states: Sequence[tf.Tensor], other_values: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Returns values for `model.non_trainable_variables`, to call the model as a function."""
        sources = iter(other_values), iter(states)
        return [next(sources[is_state]) for is_state in self._is_state]

    def drop_states(self, values: Iterable[Any]) -> list[Any]:
        """Drops the states from values of `model.non_trainable_variables`."""
        return [
            value for value, is_state in zip(values, self._is_state, strict=True) if not is_state
        ]


class Loop(abc.ABC):
    """A model and its optimizer.

    All workers of a gang call the same methods in the same order.
    """

    _weights: Sequence[Any]
    """The variables of `model.weights`, whole or as shards."""
    _best_weights: Sequence[Any]
    """The same with averages instead of trained weights, if the optimizer keeps them."""
    _optimizer_variables: Sequence[Any]

    def __init__(self, model: keras.Model, task: Task, config: Train):
        self.model, self._task, self._config = model, task, config
        self._generators = SeedGenerators(model)

    @abc.abstractmethod
    def train(
        self, batches: Batches, step: int, learning_rates: Sequence[float], stop: float = 0.0
    ) -> StepResult:
        """Takes a step for each learning rate in one call of a compiled function.

        `stop` is 1 if this worker was asked to stop.
        """

    @abc.abstractmethod
    def evaluate(self, batches: tf.data.Dataset) -> BatchSums:
        """Adds up the sums over this worker's batches and then over all workers.

        Uses the averaged weights if the optimizer keeps them.
        """

    @abc.abstractmethod
    def _read(self, variable: Any) -> np.ndarray: ...

    @abc.abstractmethod
    def _write(self, variable: Any, value: np.ndarray) -> None: ...

    def _compute_evaluation_sums(self, features: Any, labels: Any) -> BatchSums:
        return self._task.compute_batch_sums(
            self.model(cast_to_float(features), training=False), labels, training=False
        )

    def get_weights(self) -> Arrays:
        """Returns all weights, in the order of `model.weights`."""
        return [self._read(variable) for variable in self._weights]

    def get_best_weights(self) -> Arrays:
        """Returns the weights to evaluate: the averaged ones if there are any."""
        return [self._read(variable) for variable in self._best_weights]

    def get_views(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """Returns weights and optimizer values as arrays or tensors, valid until the next step.

        They are not copied if the variables of the loop are whole.
        """
        return self.get_weights(), [self._read(each) for each in self._optimizer_variables]

    def assign(self, weights: Arrays, optimizer_values: Arrays | None = None) -> None:
        """Sets weights and optimizer values. None leaves the optimizer as it is."""
        pairs = [*zip(self._weights, weights, strict=True)]
        if optimizer_values is not None:
            pairs += zip(self._optimizer_variables, optimizer_values, strict=True)
        for variable, value in pairs:
            self._write(variable, value)


Differentiate = Callable[[int | tf.Tensor, Any, Any], tuple[BatchSums, list[tf.Tensor]]]
"""Maps the number of a micro-batch, its features and its labels to sums and gradients."""


def cast_to_float(features: Any) -> Any:
    """Casts images, which travel as bytes, to the floats that a model takes."""
    return tf.nest.map_structure(
        lambda values: tf.cast(values, tf.float32) if values.dtype.is_integer else values, features
    )


def are_finite(values: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])


def slice_batch(batch: Any, number: int | tf.Tensor, count: int) -> Any:
    """Returns the given one of `count` parts of every tensor, along its first axis.

    The sizes of the parts differ by one example at most.
    """

    def slice_tensor(values: tf.Tensor) -> tf.Tensor:
        size = values.shape[0] or tf.shape(values)[0]
        if values.shape[0] and size % count == 0:
            # XLA has no tensors whose size is known only in the loop.
            rank = len(values.shape)
            start = tf.concat([[number * (size // count)], tf.zeros([rank - 1], tf.int32)], 0)
            return tf.slice(values, start, [size // count, *[-1] * (rank - 1)])
        return values[number * size // count : (number + 1) * size // count]

    return batch if count == 1 else tf.nest.map_structure(slice_tensor, batch)


def accumulate_gradients(
    count: int,
    differentiate: Differentiate,
    features: Any,
    labels: Any,
    variables: Sequence[Any],
    no_sums: BatchSums,
) -> tuple[BatchSums, list[tf.Tensor]]:
    """Applies `differentiate` part by part, so that each part reuses the memory of the last."""
    if count == 1:
        return differentiate(0, features, labels)

    def add_next(number: tf.Tensor, sums: BatchSums, gradients: list[tf.Tensor]) -> Any:
        more, new = differentiate(number, *slice_batch((features, labels), number, count))
        added = [a + b for a, b in zip(gradients, new, strict=True)]
        return number + 1, add_sums(sums, more), added

    initial = (tf.constant(0), no_sums, [tf.zeros(variable.shape) for variable in variables])
    _, sums, gradients = tf.while_loop(
        lambda number, *_: number < count, add_next, initial, parallel_iterations=1
    )
    return sums, gradients
