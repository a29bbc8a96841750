"""Sections of `train` that monitor a training: divergence, TensorBoard and debugging switches."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from pipeline_ops.config.base import Section, operational_field, per_run_field

DebugSwitch = Literal["numerics", "determinism", "eager", "dump"]
"""numerics: the first operation that produces an infinite value or NaN reports its name and its
line of code. determinism: operations that are not repeatable to the bit are replaced or refused.
eager: no function is compiled, so a debugger stops inside a step. dump: tensors are recorded for
TensorBoard's debugger."""


class Divergence(Section):
    """The reaction to an infinite or NaN loss or weight, or to a loss that is too large.

    The training goes back to the last checkpoint, finds the step that caused the divergence, and
    saves its batch. Then it goes on or stops.
    """

    action: Literal["stop", "skip_batch", "lower_learning_rate"] = "stop"
    """`skip_batch` leaves out the batch of that step. `lower_learning_rate` multiplies the rate by
    `factor`, from the checkpoint on."""
    factor: float | None = per_run_field(None, gt=0, lt=1)
    max_times: int = per_run_field(3, ge=1, le=1000)
    """Number of divergences that the action may handle. The next one stops the training."""
    max_loss: float | None = per_run_field(None, gt=0)
    """A step with a mean loss above this has diverged. With null, only an infinite or NaN
    value counts."""

    @model_validator(mode="after")
    def _validate_combination(self) -> Divergence:
        if (self.action == "lower_learning_rate") != (self.factor is not None):
            raise ValueError(
                f"got on_divergence.factor {self.factor} with the action {self.action}. The action "
                "lower_learning_rate needs a factor, such as 0.5, and the other actions have none."
            )
        return self


class Tensorboard(Section):
    """Records for TensorBoard besides the scalars, at the end of each epoch.

    Turning one on does not repeat the training.
    """

    graph: bool = operational_field(True)
    histograms: bool = operational_field(False)
    """Histograms of all weights."""
    images: int = operational_field(0, ge=0, le=100)
    """Number of validation examples that are shown with the model's predictions: its class, or its
    boxes beside the labelled ones."""
