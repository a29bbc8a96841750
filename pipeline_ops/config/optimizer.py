"""`train.optimizer` of a pipeline config: optimizer, learning rate, clipping, averaged weights."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline_ops.config.base import Section, per_run_field


class LearningRateSchedule(Section):
    """The common part of all schedules: a linear warm-up from zero to the whole learning rate."""

    warmup_steps: int = per_run_field(0, ge=0)


class Constant(LearningRateSchedule):
    """The same learning rate after the warm-up."""

    type: Literal["constant"] = "constant"


class Cosine(LearningRateSchedule):
    """Half a cosine wave from the whole learning rate down to `end_factor` of it."""

    type: Literal["cosine"]
    decay_steps: int | None = per_run_field(None, ge=1)
    """Optimizer steps from the end of the warm-up to the end of the wave. Null is until the last
    step of the last epoch."""
    end_factor: float = per_run_field(0.0, ge=0, le=1)


class Exponential(LearningRateSchedule):
    """Multiplies the learning rate by `factor` in every `decay_steps` steps, smoothly."""

    type: Literal["exponential"]
    decay_steps: int = per_run_field(..., ge=1)
    factor: float = per_run_field(..., gt=0, lt=1)


class Piecewise(LearningRateSchedule):
    """Another factor from each boundary on.

    Example: `boundaries_steps: [1000, 2000]` and `factors: [0.1, 0.01]`.
    """

    type: Literal["piecewise"]
    boundaries_steps: list[int] = Field(min_length=1)
    factors: list[float] = Field(min_length=1)

    @model_validator(mode="after")
    def _validate_combination(self) -> Piecewise:
        if len(self.boundaries_steps) != len(self.factors):
            raise ValueError(
                "there must be as many factors as boundaries_steps "
                f"({len(self.boundaries_steps)}), got {len(self.factors)}"
            )
        if any(
            later <= earlier
            for earlier, later in zip(
                [0, *self.boundaries_steps], self.boundaries_steps, strict=False
            )
        ):
            raise ValueError(
                f"boundaries_steps must be positive and ascending, got {self.boundaries_steps}"
            )
        if any(not math.isfinite(factor) or factor < 0 for factor in self.factors):
            raise ValueError(f"factors must not be negative, got {self.factors}")
        return self


AnySchedule = Annotated[Constant | Cosine | Exponential | Piecewise, Field(discriminator="type")]


class Clip(Section):
    """Bounds the gradient of the global batch, after it was summed over all workers.

    Exactly one of the three bounds is given.
    """

    global_norm: float | None = per_run_field(None, gt=0)
    """The largest norm of all gradients together. Their direction stays."""
    norm: float | None = per_run_field(None, gt=0, is_advanced=True)
    """The largest norm of each variable's gradient."""
    value: float | None = per_run_field(None, gt=0, is_advanced=True)
    """The largest absolute value of each element."""

    @model_validator(mode="after")
    def _validate_combination(self) -> Clip:
        given = [
            name for name in ("global_norm", "norm", "value") if getattr(self, name) is not None
        ]
        if len(given) != 1:
            raise ValueError(
                "exactly one of global_norm, norm and value must be given, "
                f"got {' and '.join(given) or 'none'}"
            )
        return self


class Optimizer(Section):
    """A Keras optimizer on the gradient of the global batch."""

    name: Literal["adam", "adamw", "rmsprop", "sgd"] = per_run_field("adam")
    learning_rate: float = per_run_field(1e-3, rank=2, gt=0, le=10)
    """Size of the optimizer's steps. The schedule multiplies it with its factors."""
    momentum: float = per_run_field(0.0, ge=0, lt=1)
    """The momentum. Only for sgd and rmsprop."""
    rho: float = per_run_field(0.9, ge=0, lt=1, is_advanced=True)
    """The decay of the mean of squared gradients. Only for rmsprop."""
    epsilon: float = per_run_field(1e-7, gt=0, le=10, is_advanced=True)
    """Added to the mean of squared gradients, below the root. Only for rmsprop."""
    weight_decay: float = per_run_field(0.0, ge=0, lt=1)
    """The part of each weight that it loses in each step, times the learning rate. Not for
    adam. With sgd and a momentum of 0.9, a penalty of w * |weights|**2 / 2 in the loss, the form
    in papers, is about a weight_decay of 10 * w."""
    schedule: AnySchedule = Constant()
    """The change of the learning rate with the steps. `reduce_learning_rate` multiplies the
    result."""
    clip: Clip | None = None
    average_weights: float | None = per_run_field(None, gt=0, lt=1)
    """Decay of an exponential moving average of the weights (0.999, say). The average is evaluated
    and becomes the challenger. Training goes on from the weights themselves. The decay is warmed
    up: in step t it is at most (1 + t) / (10 + t), so that the average of a short training does not
    consist of initial weights."""

    @model_validator(mode="after")
    def _validate_combination(self) -> Optimizer:
        if self.momentum and self.name not in ("sgd", "rmsprop"):
            raise ValueError(
                f"momentum is for the optimizers sgd and rmsprop, got it with {self.name}"
            )
        for name in ("rho", "epsilon"):
            default = type(self).model_fields[name].default
            if self.name != "rmsprop" and getattr(self, name) != default:
                raise ValueError(f"{name} is for the optimizer rmsprop, got it with {self.name}")
        if self.weight_decay and self.name == "adam":
            raise ValueError(
                "weight_decay is for the optimizers adamw, rmsprop and sgd, got it with adam"
            )
        return self
