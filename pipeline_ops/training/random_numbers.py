"""What layers draw at random in training, dropout above all: a matter of the seed, the step and the part of the batch, and of nothing else.

Keras's layers draw from generators, each of which has a state that counts on with every draw. Here, every step sets the states
anew. So a training that goes on from a checkpoint draws what it would have drawn, though no checkpoint holds a state;
a step that is taken again draws the same again; and each replica draws for itself, where Keras would give all of
them the same mask.

What a model draws in another way, with `tf.random.uniform` say, is not repeated after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

_STATE = "seed_generator_state"


class Generators:
    """The generators of a model's layers. Made before the first step: each is known by the seed that its state begins with.

    Args:
      model: a model that is built.

    Attributes:
      others: the non-trainable variables of the model that are no states.
    """

    def __init__(self, model: keras.Model):
        variables = model.non_trainable_variables
        self._is_state = [variable.name == _STATE for variable in variables]
        self._states = [variable for variable in variables if variable.name == _STATE]
        self._seeds = [int(state.numpy()[0]) for state in self._states]
        self.others: list[keras.Variable] = self.without_states(variables)

    def begin(self, step: int | tf.Tensor, part: int | tf.Tensor) -> None:
        """Sets the states to what they are at the beginning of a step; the layers count on from there.

        Args:
          step: counted from the first of the training.
          part: the replica or the micro-batch; each draws other numbers.
        """
        for state, value in zip(self._states, self.states_of(step, part), strict=True):
            state.assign(value)

    def states_of(self, step: int | tf.Tensor, part: int | tf.Tensor) -> list[tf.Tensor]:
        """The states at the beginning of a step, int64 [2] each."""
        step, part = tf.cast(step, tf.int64), tf.cast(part, tf.int64)
        keys = [tf.stack([seed + part * 2**32, step]) for seed in self._seeds]  # Keras's seeds are smaller than that
        return [tf.random.stateless_uniform([2], seed=key, minval=None, maxval=None, dtype=tf.int64) for key in keys]

    def with_states(self, states: Sequence[tf.Tensor], others: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Values for `model.non_trainable_variables`, to call the model as a function."""
        states, others = iter(states), iter(others)
        return [next(states if is_state else others) for is_state in self._is_state]

    def without_states(self, values: Sequence) -> list:
        """Of what there is for each of `model.non_trainable_variables`, that which is no state's."""
        return [value for value, is_state in zip(values, self._is_state, strict=True) if not is_state]
