"""Sections of `train` that watch over a training: what to do when it diverges, what TensorBoard gets, TensorFlow's debugging switches."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from pipeline_ops.config.base import Section, operational, per_run

DebugSwitch = Literal["numerics", "determinism", "eager", "dump"]
"""numerics: the first operation that makes an infinite value or none names itself and its line of code. determinism: operations
that are not repeatable to the bit are replaced, or refused. eager: nothing is compiled, so a debugger stops inside a step. dump: tensors
are recorded for TensorBoard's debugger."""


class Divergence(Section):
    """What happens when a loss or the weights become infinite or no number, or a loss too large.

    The training goes back to the last checkpoint, finds the step that did the harm, and saves its batch. Then it goes on, or stops.
    """

    action: Literal["stop", "skip_batch", "lower_learning_rate"] = "stop"
    """skip_batch leaves the batch of that step out; lower_learning_rate multiplies the rate, from the checkpoint on, by `factor`."""
    factor: float | None = per_run(None, gt=0, lt=1)
    max_times: int = per_run(3, ge=1, le=1000)
    """After so many times the training stops all the same."""
    max_loss: float | None = per_run(None, gt=0)
    """A step with a mean loss above this has diverged. Null: only one that is no number."""

    @model_validator(mode="after")
    def _fits(self) -> Divergence:
        if (self.action == "lower_learning_rate") != (self.factor is not None):
            raise ValueError(f"on_divergence.factor is what lower_learning_rate multiplies the rate with, say 0.5; got {self.factor} with the "
                             f"action {self.action}")
        return self


class Tensorboard(Section):
    """What TensorBoard gets beside the scalars, at the end of each epoch. Turning it on does not train again."""

    graph: bool = operational(True)
    histograms: bool = operational(False)
    """Of all weights."""
    images: int = operational(0, ge=0, le=100)
    """So many validation examples with what the model says of them."""
