"""The Keras optimizer of a config, and the learning rate of each step."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline_ops.config.optimizer import (
    AnySchedule,
    Constant,
    Cosine,
    Exponential,
    Optimizer,
    Piecewise,
)
from pipeline_ops.input.framework_internals import get_slots, replace_average_update


def make_optimizer(config: Optimizer, scale_loss: bool = False) -> keras.optimizers.Optimizer:
    """Makes an optimizer for the gradient of the global batch, so that its clipping is right.

    Args:
      config: The section of the optimizer.
      scale_loss: Whether to wrap it into an optimizer that scales the loss, for float16.
    """
    options: dict[str, Any] = {}
    if clip := config.clip:
        options = {
            "global_clipnorm": clip.global_norm,
            "clipnorm": clip.norm,
            "clipvalue": clip.value,
        }
    if config.average_weights is not None:
        options |= {"use_ema": True, "ema_momentum": config.average_weights}
    if config.weight_decay or config.name == "adamw":
        options["weight_decay"] = config.weight_decay
    if config.name in ("sgd", "rmsprop"):
        options["momentum"] = config.momentum
    if config.name == "rmsprop":
        options |= {"rho": config.rho, "epsilon": config.epsilon}
    kinds = {
        "sgd": keras.optimizers.SGD,
        "adam": keras.optimizers.Adam,
        "adamw": keras.optimizers.AdamW,
        "rmsprop": keras.optimizers.RMSprop,
    }
    optimizer = kinds[config.name](config.learning_rate, **options)
    if config.average_weights is not None:
        _warm_up_average(optimizer, config.average_weights)
    return keras.optimizers.LossScaleOptimizer(optimizer) if scale_loss else optimizer


def compute_average_decay(decay: float, step: tf.Tensor) -> tf.Tensor:
    """Returns the share of the averaged weights that a step keeps.

    It is 0 in the first step, then `min(decay, (1 + step) / (10 + step))`, the rule of
    `tf.train.ExponentialMovingAverage`. With a constant decay of 0.999, an average of 200 steps
    would still consist of the initial weights to 80 percent.
    """
    number = tf.cast(step, tf.float32)
    return tf.where(
        number == 0, 0.0, tf.minimum(tf.constant(decay, tf.float32), (1 + number) / (10 + number))
    )


def _warm_up_average(optimizer: keras.optimizers.Optimizer, decay: float) -> None:
    """Replaces Keras's update of the averages, which has no warm-up."""

    def update(variables: Sequence[keras.Variable]) -> None:
        kept = compute_average_decay(decay, optimizer.iterations.value)
        for variable, average in zip(variables, get_slots(optimizer)["averages"], strict=True):
            average.assign(
                kept * tf.convert_to_tensor(average) + (1 - kept) * tf.convert_to_tensor(variable)
            )

    replace_average_update(optimizer, update)


def compute_schedule_factor(schedule: AnySchedule, step: int, total_steps: int) -> float:
    """Returns the factor of the learning rate in a step.

    It depends on the step alone, so a restart changes nothing.

    Args:
      schedule: The schedule.
      step: The number of the step, from 0.
      total_steps: The number of steps of the whole training without early stopping.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / (schedule.warmup_steps + 1)
    match schedule:
        case Constant():
            return 1.0
        case Cosine():
            decay_steps = schedule.decay_steps or max(1, total_steps - schedule.warmup_steps)
            done = min(1.0, (step - schedule.warmup_steps) / decay_steps)
            return (
                schedule.end_factor + (1 - schedule.end_factor) * (1 + math.cos(math.pi * done)) / 2
            )
        case Exponential():
            return math.pow(schedule.factor, (step - schedule.warmup_steps) / schedule.decay_steps)
        case Piecewise():
            return [1.0, *schedule.factors][bisect.bisect_right(schedule.boundaries_steps, step)]
