"""The optimizers for weights in pieces: on parameter servers, or divided among devices of a mesh.

Keras binds its optimizers to variables of its own, which cannot be in pieces. The formulas here are
Keras's, element by element, so the place of an element makes no difference. The tests compare all
of them with Keras. The norm, which needs a whole gradient, is computed before the gradient is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from pipeline_ops.config.optimizer import Clip, Optimizer
from pipeline_ops.training.optimizer import average_decay, make_optimizer

Pieces = list[tf.Variable]
"""One weight, cut along its first axis."""

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-7  # Keras's defaults
_AVERAGES = "_model_variables_moving_average"


def read(pieces: Pieces) -> tf.Tensor:
    values = [piece.read_value() for piece in pieces]
    return values[0] if len(values) == 1 else tf.concat(values, axis=0)


class PiecewiseOptimizer:
    """SGD, Adam or AdamW with clipping and averaged weights.

    Args:
      config: The section of the optimizer.
      weights: The trainable weights.
      like: Creates a variable of zeros in the place of the given one, or a scalar int64 counter for
        None.
    """

    def __init__(
        self,
        config: Optimizer,
        weights: Sequence[Pieces],
        like: Callable[[tf.Variable | None], tf.Variable],
    ):
        self._config, self._weights = config, weights
        self.iterations = like(None)
        names = {
            "sgd": ["momentums"] if config.momentum else [],
            "adam": ["_momentums", "_velocities"],
            "adamw": ["_momentums", "_velocities"],
        }
        slots = names[config.name] + ([_AVERAGES] if config.average_weights else [])
        self.slots: dict[str, list[Pieces]] = {
            name: [[like(piece) for piece in pieces] for pieces in weights] for name in slots
        }
        """The slots, by the name of the corresponding list in Keras's optimizer."""

    @property
    def averages(self) -> list[Pieces] | None:
        return self.slots.get(_AVERAGES)

    def apply(self, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor) -> list[tf.Tensor]:
        """Takes one step with the gradients of whole weights. Returns the new pieces."""
        step, after = self.iterations.read_value(), []
        for number, gradient in enumerate(clipped(self._config.clip, gradients)):
            pieces = self._weights[number]
            parts = (
                [gradient]
                if len(pieces) == 1
                else tf.split(gradient, [piece.shape[0] for piece in pieces])
            )
            for index, (piece, part) in enumerate(zip(pieces, parts, strict=True)):
                slots = {name: values[number][index] for name, values in self.slots.items()}
                after.append(self._apply_to(piece, part, slots, learning_rate, step))
        self.iterations.assign(step + 1)
        return after

    def _apply_to(
        self,
        weight: tf.Variable,
        gradient: tf.Tensor,
        slots: dict[str, tf.Variable],
        rate: tf.Tensor,
        step: tf.Tensor,
    ) -> tf.Tensor:
        """Reads each variable once, and then writes it once.

        In a step that DTensor compiles, a read may come before an earlier write.
        """
        value = weight.read_value()
        if self._config.weight_decay:
            value -= value * self._config.weight_decay * rate
        value += (
            self._momentum_step(gradient, slots, rate)
            if self._config.name == "sgd"
            else _adam_step(gradient, slots, rate, step)
        )
        weight.assign(value)
        if _AVERAGES in slots:
            kept = average_decay(self._config.average_weights, step)
            slots[_AVERAGES].assign(kept * slots[_AVERAGES].read_value() + (1 - kept) * value)
        return value

    def _momentum_step(
        self, gradient: tf.Tensor, slots: dict[str, tf.Variable], rate: tf.Tensor
    ) -> tf.Tensor:
        if not self._config.momentum:
            return -gradient * rate
        velocity = slots["momentums"].read_value() * self._config.momentum - gradient * rate
        slots["momentums"].assign(velocity)
        return velocity


def _adam_step(
    gradient: tf.Tensor, slots: dict[str, tf.Variable], rate: tf.Tensor, step: tf.Tensor
) -> tf.Tensor:
    """Algorithm 1 of Kingma and Ba (2015).

    The bias corrections are folded into the rate, as in Keras.
    """
    number = tf.cast(step + 1, tf.float32)
    alpha = rate * tf.sqrt(1 - tf.pow(_BETA_2, number)) / (1 - tf.pow(_BETA_1, number))
    momentum, velocity = slots["_momentums"].read_value(), slots["_velocities"].read_value()
    momentum += (gradient - momentum) * (1 - _BETA_1)
    velocity += (tf.square(gradient) - velocity) * (1 - _BETA_2)
    slots["_momentums"].assign(momentum)
    slots["_velocities"].assign(velocity)
    return -momentum * alpha / (tf.sqrt(velocity) + _EPSILON)


def clipped(config: Clip | None, gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    if config is None:
        return gradients
    if config.global_norm is not None:
        norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(gradient)) for gradient in gradients]))
        return [
            gradient * config.global_norm / tf.maximum(norm, config.global_norm)
            for gradient in gradients
        ]
    if config.norm is not None:
        norms = [tf.sqrt(tf.reduce_sum(tf.square(gradient))) for gradient in gradients]
        return [
            gradient * config.norm / tf.maximum(norm, config.norm)
            for gradient, norm in zip(gradients, norms, strict=True)
        ]
    return [tf.clip_by_value(gradient, -config.value, config.value) for gradient in gradients]


def checkpoint_order(config: Optimizer, model: keras.Model) -> list[tuple[str, int]]:
    """The place of each of a Keras optimizer's variables in `PiecewiseOptimizer`.

    A place is the name of a list and an index in it, or the name of a scalar and 0. So a checkpoint
    has the same arrays in the same order under every strategy, and a training can resume under
    another one.
    """
    reference = make_optimizer(config)
    reference.build(model.trainable_variables)
    places = {
        id(variable): (name, index)
        for name, values in vars(reference).items()
        if isinstance(values, list)
        and name in ("momentums", "_momentums", "_velocities", _AVERAGES)
        for index, variable in enumerate(values)
    }
    scalars = {
        id(reference.iterations): ("iterations", 0),
        id(reference._learning_rate): ("learning_rate", 0),
    }
    return [(places | scalars)[id(variable)] for variable in reference.variables]
