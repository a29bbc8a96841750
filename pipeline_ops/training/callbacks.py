"""Callbacks at the end of an epoch: reduce the learning rate, remember the best weights, stop.

Each callback is a function of the config and the state, and changes only the state. All workers
call them with the same reduced metrics, so all workers decide alike. The state holds everything
that a callback remembers, so a restarted gang continues as if it had never stopped. Keras's own
callbacks reset themselves when training begins.
"""

from __future__ import annotations

from pipeline_ops.artifacts.results import Epoch
from pipeline_ops.config.train import Train
from pipeline_ops.training.checkpointing.state import TrainingState


def end_epoch(config: Train, state: TrainingState, epoch: Epoch) -> None:
    """Appends the epoch to the history and runs every callback of the config."""
    state.history.append(epoch)
    _update_best_epoch(config, state, epoch)
    _reduce_learning_rate(config, state, epoch)
    _stop_early(config, state, epoch)


def _update_best_epoch(config: Train, state: TrainingState, epoch: Epoch) -> None:
    if config.best_monitor is None or _check_improvement(
        state, "best_checkpoint", epoch, config.best_monitor
    ):
        state.best_epoch = epoch.epoch


def _reduce_learning_rate(config: Train, state: TrainingState, epoch: Epoch) -> None:
    plateau = config.reduce_learning_rate
    if plateau is None or _check_improvement(state, "reduce_learning_rate", epoch, plateau.monitor):
        return
    if state.patience["reduce_learning_rate"] >= plateau.patience_epochs:
        state.learning_rate = max(state.learning_rate * plateau.factor, plateau.min_learning_rate)
        state.patience["reduce_learning_rate"] = 0


def _stop_early(config: Train, state: TrainingState, epoch: Epoch) -> None:
    stopping = config.early_stopping
    if stopping is None or _check_improvement(
        state, "early_stopping", epoch, stopping.monitor, stopping.min_delta
    ):
        return
    state.stopped_early = state.patience["early_stopping"] >= stopping.patience_epochs


def _check_improvement(
    state: TrainingState, callback: str, epoch: Epoch, monitor: str, min_delta: float = 0.0
) -> bool:
    """Returns whether the monitored metric beats the callback's best, and updates its patience.

    Lower is better for a loss or an error, higher for all other metrics. An equal value is no
    improvement, so the earlier epoch wins. The patience counts the epochs without improvement.
    """
    value = epoch.metrics[monitor]
    signed = -value if monitor.endswith(("loss", "error")) else value
    is_better = callback not in state.best or signed > state.best[callback] + min_delta
    if is_better:
        state.best[callback] = signed
    state.patience[callback] = 0 if is_better else state.patience.get(callback, 0) + 1
    return is_better
