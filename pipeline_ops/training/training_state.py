"""The state of a training besides its weights and its optimizer, the same on every worker."""

from __future__ import annotations

from typing import Any, NamedTuple

from pipeline_ops.card.items import CardContent
from pipeline_ops.contract.results import Epoch
from pipeline_ops.storage.parsing import JsonModel


class DivergedStep(JsonModel):
    """A step that diverged. `loss` is text, because JSON has no NaN."""

    step: int
    loss: str
    is_skipped: bool


class EpochSums(NamedTuple):
    """The `BatchSums` of the running epoch, without metrics before its first step."""

    loss: float = 0.0
    metrics: list[float] = []
    count: Any = 0.0


class TrainingState(JsonModel):
    """The state of the loop besides weights and optimizer. It is the same on every worker."""

    step: int = 0
    epoch_sums: EpochSums = EpochSums()
    learning_rate: float
    new_weights: list[str] = []
    """The paths of the weights that the warm start has not set. Only they learn in the first
    `train.freeze_epochs` epochs."""
    history: list[Epoch] = []
    best: dict[str, float] = {}
    patience: dict[str, int] = {}
    """The number of epochs without improvement, by callback."""
    best_epoch: int = -1
    stopped_early: bool = False
    divergences: list[DivergedStep] = []
    callbacks: list[list[dict[str, Any]]] = []
    """What each callback of each entry of `train.callbacks` remembers."""
    card: CardContent = CardContent()
    """What the author's code has shown on the page of the run. Only the chief's counts."""
    warnings: list[str] = []
    """Warnings to show at the end, such as a damaged checkpoint or a skipped batch."""

    @property
    def skipped(self) -> set[int]:
        """Steps whose batches are skipped."""
        return {diverged.step for diverged in self.divergences if diverged.is_skipped}
