"""The interface of the loops: a model, its optimizer, and the steps of a strategy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.models.task import BatchSums
from pipeline_ops.training.checkpointing.state import Arrays

Batches = Iterator[tuple[Any, Any]]
"""Training batches of features and labels."""


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The result of one or more steps, the same on every worker.

    Attributes:
      sums: The sums over all workers, as arrays.
      is_finite: Whether every weight is finite.
      is_stop_requested: Whether some worker was asked to stop.
      worst_loss: The largest mean loss of a step.
    """

    sums: BatchSums
    is_finite: bool
    is_stop_requested: bool
    worst_loss: float

    @property
    def is_sound(self) -> bool:
        return self.is_finite and all(bool(np.isfinite(values).all()) for values in self.sums)


def to_arrays(sums: BatchSums) -> BatchSums:
    return BatchSums(*map(np.asarray, sums))


class Loop(Protocol):
    """A model and its optimizer.

    All workers of a gang call the same methods in the same order.
    """

    model: keras.Model

    def train(
        self, batches: Batches, step: int, learning_rates: Sequence[float], stop: float = 0.0
    ) -> StepResult:
        """Takes a step for each learning rate in one call of a compiled function.

        Args:
          batches: The training batches.
          step: The number of the first step.
          learning_rates: The learning rate of each step.
          stop: 1 if this worker was asked to stop.
        """
        ...

    def evaluate(self, batches: tf.data.Dataset) -> BatchSums:
        """Adds up the sums over this worker's batches and then over all workers.

        Uses the averaged weights if the optimizer keeps them.
        """
        ...

    def get_weights(self) -> Arrays:
        """Returns all weights, in the order of `model.weights`."""
        ...

    def get_best_weights(self) -> Arrays:
        """Returns the weights to evaluate: the averaged ones if there are any."""
        ...

    def get_views(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """Returns weights and optimizer values as arrays or tensors, valid until the next step.

        They are not copied if the variables of the loop are whole.
        """
        ...

    def assign(self, weights: Arrays, optimizer_values: Arrays | None = None) -> None:
        """Sets weights and optimizer values. None leaves the optimizer as it is."""
        ...
