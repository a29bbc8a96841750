"""The optimizer of a config, for whole and for sharded weights, and each step's learning rate."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.config.train import (
    AnySchedule,
    Clip,
    Constant,
    Cosine,
    Exponential,
    Optimizer,
    OwnSchedule,
    Piecewise,
)
from pipeline_ops.errors import ConfigError
from pipeline_ops.input.framework_internals import get_slots, replace_average_update
from pipeline_ops.models import load_function

VariableShards = list[tf.Variable]
"""The shards of one weight, along its first axis."""

_BETA_1, _BETA_2 = 0.9, 0.999  # Keras's defaults
_AVERAGES = "averages"


def make_optimizer(
    config: Optimizer,
    scale_loss: bool = False,
    folder: Path = Path(),  # noqa: B008  (immutable)
) -> keras.optimizers.Optimizer:
    """Makes an optimizer for the gradient of the global batch.

    Args:
      config: the section `train.optimizer`.
      scale_loss: whether the loss is scaled, as float16 needs it.
      folder: that of the author's modules.
    """
    optimizer = _make_own(config, folder) if config.is_own else _make_known(config)
    if config.average_weights is not None:
        _warm_up_average(optimizer, config.average_weights)
    is_scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return keras.optimizers.LossScaleOptimizer(optimizer) if scale_loss > is_scaled else optimizer


def _make_own(config: Optimizer, folder: Path) -> keras.optimizers.Optimizer:
    """Makes an optimizer of a class of Keras, or of a class or a function of the author's."""
    where = f"train.optimizer: {config.name}"
    make = load_function(config.name, "train.optimizer", folder)
    try:
        optimizer = make(learning_rate=config.learning_rate, **config.arguments)
    except Exception as error:  # a user's code may raise any exception
        raise ConfigError(
            f"{where} cannot be made: {type(error).__name__}: {error}. It is called as "
            f"{config.name.partition(':')[2]}(learning_rate, **arguments)."
        ) from error
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    fault = ""
    if not isinstance(inner, keras.optimizers.Optimizer):
        fault = f"must make an optimizer of Keras {keras.__version__}, got {optimizer!r}"
    elif isinstance(inner, keras.optimizers.ScheduleFreeAdamW):
        fault = "begins with a copy of the weights, which a warm start sets later. Use AdamW"
    elif isinstance(inner, keras.optimizers.MultiOptimizer):
        fault = "has several rates. Compile the model with it, in the function that builds it"
    elif not isinstance(inner.learning_rate, keras.Variable):
        fault = "has a schedule of its own. Name it in train.optimizer.schedule, type: own"
    if fault:
        raise ConfigError(f"{where} {fault}.")
    for name, value in _get_common_options(config).items():
        if getattr(inner, name, None) is None or name == "use_ema":
            setattr(inner, name, value)
    return optimizer


def _get_common_options(config: Optimizer) -> dict[str, Any]:
    """Returns the options that all optimizers of Keras have."""
    options: dict[str, Any] = {}
    if clip := config.clip:
        options |= {"global_clipnorm": clip.global_norm, "clipnorm": clip.norm}
        options["clipvalue"] = clip.value
    if config.average_weights is not None:
        options |= {"use_ema": True, "ema_momentum": config.average_weights}
    return options


def _make_known(config: Optimizer) -> keras.optimizers.Optimizer:
    options = _get_common_options(config)
    if config.weight_decay or config.name == "adamw":
        options["weight_decay"] = config.weight_decay
    if config.name in ("sgd", "rmsprop"):
        options["momentum"] = config.momentum
    if config.name == "rmsprop":
        options["rho"] = config.rho
    if config.name == "sgd":
        options["nesterov"] = config.nesterov
    else:
        options["epsilon"] = config.epsilon
    kinds = {
        "sgd": keras.optimizers.SGD,
        "adam": keras.optimizers.Adam,
        "adamw": keras.optimizers.AdamW,
        "rmsprop": keras.optimizers.RMSprop,
    }
    return kinds[config.name](config.learning_rate, **options)


def _compute_average_decay(decay: float, step: tf.Tensor) -> tf.Tensor:
    """Returns the share of the averaged weights that a step keeps.

    It is 0 in the first step, then `min(decay, (1 + step) / (10 + step))`, the rule of
    `tf.train.ExponentialMovingAverage`. With a constant decay of 0.999, an average of 200 steps
    would still consist of the initial weights to 80 percent.
    """
    number = tf.cast(step, tf.float32)
    return tf.where(number == 0, 0.0, tf.minimum(decay, (1 + number) / (10 + number)))


def _warm_up_average(optimizer: keras.optimizers.Optimizer, decay: float) -> None:
    """Replaces Keras's update of the averages, which has no warm-up."""

    def update(variables: Sequence[keras.Variable]) -> None:
        kept = _compute_average_decay(decay, optimizer.iterations.value)
        for variable, average in zip(variables, get_slots(optimizer)[_AVERAGES], strict=True):
            # Keras applies the constraint to the weight only after this.
            constrain = (variable.trainable and variable.constraint) or tf.identity
            value, old = constrain(tf.convert_to_tensor(variable)), tf.convert_to_tensor(average)
            share = tf.cast(1 - kept, old.dtype)
            # Of a frozen weight, the new value is exactly the old one.
            average.assign(constrain(old + share * (value - old)))

    replace_average_update(optimizer, update)


Schedule = Callable[[int, int], float]
"""Maps a step, counted from 0, and the number of all steps to a factor of the learning rate."""


def load_schedule(config: Optimizer, folder: Path) -> Schedule:
    """Returns the schedule of a config. `folder` is that of the author's modules.

    Raises ConfigError if the author's own one cannot be loaded.
    """
    schedule = config.schedule
    if not isinstance(schedule, OwnSchedule):
        return functools.partial(compute_schedule_factor, schedule)
    where = f"train.optimizer.schedule: {schedule.function}"
    function = load_function(schedule.function, "train.optimizer.schedule", folder)
    own: Callable[..., Any] = functools.partial(function, **schedule.arguments)
    kind = keras.optimizers.schedules.LearningRateSchedule
    if isinstance(function, kind) or (isinstance(function, type) and issubclass(function, kind)):
        if config.learning_rate != 1:
            raise ConfigError(
                f"{where} gives the learning rate itself. Set train.optimizer.learning_rate: 1."
            )
        try:
            made = own() if isinstance(function, type) else function
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where} cannot be made: {error}. Correct its arguments.") from error

        def own(step: int, _: int) -> Any:
            return made(step)

    def compute(step: int, total_steps: int) -> float:
        if step < schedule.warmup_steps:
            return compute_schedule_factor(schedule, step, total_steps)
        with tf.device("CPU:0"):
            value = keras.ops.convert_to_numpy(own(step, total_steps))
        if np.ndim(value) or not math.isfinite(value) or value < 0:
            raise ConfigError(
                f"{where} returns {value} for step {step}. It must be a number, and not negative."
            )
        return float(value)

    return compute


def compute_schedule_factor(schedule: AnySchedule, step: int, total_steps: int) -> float:
    """Returns the factor of the learning rate in a step, counted from 0.

    It depends on the step alone, so a restart changes nothing. `total_steps` is the length of the
    whole training without early stopping.
    """
    warmup = schedule.warmup_steps
    if step < warmup:
        start = 1 / (warmup + 1) if schedule.warmup_factor is None else schedule.warmup_factor
        grown = 0.0 if schedule.warmup_type == "constant" else (1 - start) * step / warmup
        least = schedule.min_factor if isinstance(schedule, Exponential) else 0.0
        return max(least, start + grown)
    match schedule:
        case Constant():
            return 1.0
        case Cosine():
            begin = warmup + schedule.hold_steps
            decay_steps = schedule.decay_steps or max(1, total_steps - begin)
            done = min(1.0, max(0, step - begin) / decay_steps)
            end = schedule.end_factor
            return end + (1 - end) * (1 + math.cos(math.pi * done)) / 2
        case Exponential():
            periods = (step - warmup) / schedule.decay_steps
            periods = math.floor(periods) if schedule.staircase else periods
            return max(schedule.min_factor, math.pow(schedule.factor, periods))
        case OwnSchedule():
            raise ValueError(f"{schedule.function} is not loaded")  # see `load_schedule`
        case Piecewise():
            return [1.0, *schedule.factors][bisect.bisect_right(schedule.boundaries_steps, step)]


def read_variable(shards: VariableShards) -> tf.Tensor:
    values = [shard.read_value() for shard in shards]
    return values[0] if len(values) == 1 else tf.concat(values, axis=0)


def split_like(shards: VariableShards, value: Any) -> list[Any]:
    """Splits the value of a whole weight into the values of its shards."""
    return [value] if len(shards) == 1 else tf.split(value, [shard.shape[0] for shard in shards])


def write_variable(shards: VariableShards, value: Any) -> None:
    """Sets a whole weight, shard by shard."""
    for shard, part in zip(shards, split_like(shards, value), strict=True):
        shard.assign(part)


class ShardedOptimizer:
    """SGD, RMSprop, Adam or AdamW with clipping and averaged weights, for sharded weights.

    Keras binds its optimizers to variables of its own, which cannot be sharded, and its
    `stateless_apply` refuses to run on TensorFlow. The formulas are Keras's, element by element, so
    the location of an element makes no difference. The tests compare all of them with Keras.
    Clipping needs whole gradients and precedes the split.

    `weights` are the shards of `variables`. `create_scalar` creates a variable with a value, and
    `create_zeros` one of the shape and on the device of a shard.
    """

    def __init__(
        self,
        config: Optimizer,
        variables: Sequence[keras.Variable],
        weights: Sequence[VariableShards],
        create_scalar: Callable[[Any], tf.Variable],
        create_zeros: Callable[[tf.Variable], tf.Variable],
    ):
        self._config, self._weights = config, weights
        self._constraints = [variable.constraint for variable in variables]
        reference = make_optimizer(config)
        reference.build(variables)
        self._iterations = create_scalar(np.int64(0))
        # Only for checkpoints, because every step gets its own.
        learning_rate = create_scalar(np.float32(config.learning_rate))
        found = {
            id(reference.iterations): [self._iterations],
            id(reference.learning_rate): [learning_rate],
        }
        self.slots: dict[str, list[VariableShards]] = {}
        """The slots of all weights, by the names of `get_slots`."""
        for name, slot in get_slots(reference).items():
            self.slots[name] = [[create_zeros(shard) for shard in shards] for shards in weights]
            found |= {id(each): made for each, made in zip(slot, self.slots[name], strict=True)}
        self.paths = [each.path for each in reference.variables]
        self.variables: list[VariableShards] = [found[id(each)] for each in reference.variables]
        """All variables in the order of a Keras optimizer.

        So checkpoints are the same under every strategy, and a training can resume under another.
        """

    @property
    def averages(self) -> list[VariableShards] | None:
        return self.slots.get(_AVERAGES)

    def apply(
        self,
        gradients: Sequence[tf.Tensor],
        learning_rate: tf.Tensor,
        assigned: Mapping[int, tf.Tensor],
        unused: Collection[int] = (),
    ) -> list[tf.Tensor]:
        """Takes one step with the gradients of whole weights. Returns the new shards.

        The step starts from the `assigned` values of whole weights, by position, where there are
        any. The `unused` weights do not learn.

        Each variable is read once, and then written once. In a step that DTensor compiles, a read
        may come before an earlier write.
        """
        step, new_shards = self._iterations.read_value(), []
        if self._config.clip is not None:
            gradients = _clip_gradients(self._config.clip, gradients)
        for number, (shards, gradient) in enumerate(zip(self._weights, gradients, strict=True)):
            parts = split_like(shards, gradient)
            olds = split_like(shards, assigned[number]) if number in assigned else shards
            slots = [
                {name: slots[number][index].read_value() for name, slots in self.slots.items()}
                for index in range(len(shards))
            ]
            values = [*map(tf.convert_to_tensor, olds)]
            if number not in unused:
                values = [
                    _update(self._config, value, part, each, learning_rate, step)
                    for value, part, each in zip(values, parts, slots, strict=True)
                ]
                values = self._constrain(number, values)
            if (decay := self._config.average_weights) is not None:
                kept = _compute_average_decay(decay, step)
                averages = [
                    each[_AVERAGES] + tf.cast(1 - kept, value.dtype) * (value - each[_AVERAGES])
                    for value, each in zip(values, slots, strict=True)
                ]
                for each, average in zip(slots, self._constrain(number, averages), strict=True):
                    each[_AVERAGES] = average
            for index, (shard, value) in enumerate(zip(shards, values, strict=True)):
                shard.assign(value)
                for name, variables in self.slots.items():
                    variables[number][index].assign(slots[index][name])
            new_shards += values
        self._iterations.assign(step + 1)
        return new_shards

    def _constrain(self, number: int, parts: list[tf.Tensor]) -> list[tf.Tensor]:
        """Applies the constraint of a weight, which may look at the whole weight, to its shards."""
        constraint = self._constraints[number]
        if constraint is None:
            return parts
        whole = parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
        return split_like(self._weights[number], constraint(whole))


def _update(
    config: Optimizer,
    weight: tf.Tensor,
    gradient: tf.Tensor,
    slots: dict[str, tf.Tensor],
    rate: tf.Tensor,
    step: tf.Tensor,
) -> tf.Tensor:
    """Returns the new value of a weight, and puts those of its slots into `slots`.

    All are computed in the weight's type, as in Keras.
    """
    rate = tf.cast(rate, weight.dtype)
    if config.weight_decay:
        weight -= weight * config.weight_decay * rate
    match config.name:
        case "sgd":
            update = -gradient * rate
            if config.momentum:
                step_back, update = update, slots["momentums"] * config.momentum + update
                slots["momentums"] = update
                if config.nesterov:
                    update = update * config.momentum + step_back
        case "rmsprop":
            mean = config.rho * slots["velocities"] + (1 - config.rho) * tf.square(gradient)
            slots["velocities"] = mean
            decrease = rate * gradient / tf.sqrt(mean + config.epsilon)
            if config.momentum:
                slots["momentums"] = decrease = config.momentum * slots["momentums"] + decrease
            update = -decrease
        case _:
            # Algorithm 1 of Kingma and Ba (2015). The bias corrections are folded into the rate,
            # as in Keras.
            number = tf.cast(step + 1, weight.dtype)
            alpha = (
                rate
                * tf.sqrt(1 - tf.pow(tf.cast(_BETA_2, weight.dtype), number))
                / (1 - tf.pow(tf.cast(_BETA_1, weight.dtype), number))
            )
            momentum, velocity = slots["momentums"], slots["velocities"]
            momentum += (gradient - momentum) * (1 - _BETA_1)
            velocity += (tf.square(gradient) - velocity) * (1 - _BETA_2)
            slots |= {"momentums": momentum, "velocities": velocity}
            update = -momentum * alpha / (tf.sqrt(velocity) + config.epsilon)
    return weight + update


def _clip_gradients(config: Clip, gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    if config.global_norm is not None:
        # Not `tf.linalg.global_norm`, whose operation DTensor does not support.
        norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(gradient)) for gradient in gradients]))
        return tf.clip_by_global_norm(gradients, config.global_norm, use_norm=norm)[0]
    if config.norm is not None:
        return [tf.clip_by_norm(gradient, config.norm) for gradient in gradients]
    limit = tf.constant(config.value, tf.float32)
    return [
        tf.clip_by_value(gradient, -tf.cast(limit, gradient.dtype), tf.cast(limit, gradient.dtype))
        for gradient in gradients
    ]
