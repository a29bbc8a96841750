"""The checkpoints of a loop: all workers save and restore the same step together."""

from __future__ import annotations

from collections.abc import Callable

from pipeline_ops.jobs.progress import ProgressWriter
from pipeline_ops.training.all_reduce import Gather
from pipeline_ops.training.checkpointing.checkpoints import Checkpoints
from pipeline_ops.training.checkpointing.consensus import restore_common_checkpoint
from pipeline_ops.training.checkpointing.state import Arrays, TrainingState
from pipeline_ops.training.loops.loop import Loop

_READY = b"r"


class CheckpointManager:
    """Saves and restores weights, optimizer and state.

    All workers call its methods in the same order. The chief alone writes.

    Args:
      files: The checkpoints as files.
      loop: The loop to save and restore.
      gather: Sends each worker's message to all workers.
      is_chief: Whether this worker writes.
      progress: The progress writer for warnings and restores.
      initialize: Sets the loop's weights for a new training, and returns its state.

    Attributes:
      files: The checkpoints as files.
      best: The weights of the best epoch so far.
    """

    best: Arrays

    def __init__(
        self,
        files: Checkpoints,
        loop: Loop,
        gather: Gather,
        is_chief: bool,
        progress: ProgressWriter,
        initialize: Callable[[], TrainingState],
    ):
        self.files, self._loop, self._gather, self._is_chief = files, loop, gather, is_chief
        self._progress, self._initialize = progress, initialize
        self._saved = files.make_id(0)

    def restore(self) -> TrainingState:
        """Restores the newest checkpoint that all workers can read, or begins a new training."""
        if self._is_chief:
            self.files.remove_leftovers()
        warnings: list[str] = []
        restored = restore_common_checkpoint(self.files, self._gather, warnings.append)
        for warning in warnings:
            self._progress.report("warning", message=warning)
        if restored is None:
            state = self._initialize()
            self.best = self._loop.get_best_weights()
        else:
            state, self._saved = restored.state, restored.id
            self._loop.assign(restored.weights, restored.optimizer)
            self.best = restored.weights if restored.best is None else restored.best
            self._progress.report(
                "restored", state.step, unit="steps", message=f"resumes from step {state.step}"
            )
        state.warnings += warnings
        return state

    def roll_back(self, timeout_seconds: float) -> TrainingState:
        """Restores the last saved checkpoint, which the chief may still be writing or storing.

        An earlier copy of the same step lacks the decision after the last divergence. Therefore no
        worker restores before the chief has replaced it.
        """
        self.files.wait()
        self.files.wait_until_exchanged(timeout_seconds)
        self._gather(_READY)
        self.files.wait_for(self._saved, timeout_seconds)
        return self.restore()

    def save(self, state: TrainingState, best: Arrays | None = None) -> None:
        """Saves the loop and its state.

        Args:
          state: The state of the training.
          best: The weights of the epoch that just ended, if it is the best one.
        """
        if best is not None:
            self.best = best
        # All workers read, because reading is an exchange between them for some variables.
        weights, optimizer_values = self._loop.get_views()
        if self._is_chief:
            self.files.save(state, weights, optimizer_values, best)
        self._saved = self.files.make_id(state.step)
