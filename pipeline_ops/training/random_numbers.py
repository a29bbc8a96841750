"""Random numbers of layers in training, of dropout above all, from seed, step and part alone.

Keras's layers draw from generators with a state that advances with every draw. Here, every step
sets the states. A training that resumes from a checkpoint therefore draws the same numbers as an
uninterrupted one, although no checkpoint holds a state. A repeated step draws the same numbers.
Each replica draws its own, while Keras would give all replicas the same mask.

Numbers that a model draws in another way, such as `tf.random.uniform`, are not repeated after a
restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

_STATE = "seed_generator_state"


class SeedGenerators:
    """The generators of a model's layers, each known by the seed in its initial state.

    Created before the first step. `other_variables` are the model's non-trainable variables that
    are not states.
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
