"""Callbacks at the end of an epoch: those of the config, and the user's own.

The config's reduce the learning rate, remember the best weights, and stop. They change only the
state. All workers call them with the same reduced metrics, so all workers decide alike. The state
holds everything that a callback remembers, so a restarted gang continues as if it had never
stopped. Keras's own callbacks reset themselves when training begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from pipeline_ops.artifacts.results import Epoch
from pipeline_ops.config.train import Train, is_lower_better
from pipeline_ops.errors import ConfigError, TrainyardError
from pipeline_ops.models import load_object
from pipeline_ops.training.checkpoints import TrainingState

_METHODS = ("begin", "after_epoch", "end")


def end_epoch(config: Train, state: TrainingState, epoch: Epoch) -> None:
    """Appends the epoch to the history and runs every callback of the config."""
    state.history.append(epoch)
    monitor, plateau, stop = config.best_monitor, config.reduce_learning_rate, config.early_stopping
    best = max(state.history, key=lambda each: _rate(each, monitor)) if monitor else epoch
    state.best_epoch = best.epoch
    if plateau is not None:
        waited = _update_patience(state, "reduce_learning_rate", epoch, plateau.monitor)
        if waited >= plateau.patience_epochs:
            rate = state.learning_rate * plateau.factor
            state.learning_rate = max(rate, plateau.min_learning_rate)
            state.patience["reduce_learning_rate"] = 0
    if stop is not None:
        waited = _update_patience(state, "early_stopping", epoch, stop.monitor, stop.min_delta)
        state.stopped_early = waited >= stop.patience_epochs


def _rate(epoch: Epoch, monitor: str) -> tuple[float, float]:
    """A key that is larger for a better epoch. Of equal figures, the loss decides."""
    return _get_signed(epoch, monitor), _get_signed(epoch, "validation_loss")


def _get_signed(epoch: Epoch, monitor: str) -> float:
    """The figure, negative for a loss or an error, so that higher is better."""
    value = epoch.metrics[monitor]
    return -value if is_lower_better(monitor) else value


def _update_patience(
    state: TrainingState, callback: str, epoch: Epoch, monitor: str, min_delta: float = 0.0
) -> int:
    """Returns the number of epochs since the monitored metric beat the callback's best.

    An equal value is no improvement.
    """
    signed = _get_signed(epoch, monitor)
    is_better = callback not in state.best or signed > state.best[callback] + min_delta
    if is_better:
        state.best[callback] = signed
    state.patience[callback] = 0 if is_better else state.patience.get(callback, 0) + 1
    return state.patience[callback]


class Run:
    """The view of the training that a callback gets.

    Read the weights of `model` on all workers or on none. `folder` becomes part of the artifact,
    next to TensorBoard's files. Only the chief should write to it.
    """

    def __init__(
        self, state: TrainingState, path: str, model: keras.Model, folder: Path, may_change: bool
    ):
        self._state, self._path, self._may_change = state, path, may_change
        self.model, self.folder = model, folder

    @property
    def step(self) -> int:
        return self._state.step

    @property
    def history(self) -> Sequence[Epoch]:
        return tuple(self._state.history)

    @property
    def memory(self) -> dict[str, Any]:
        """JSON values of this callback that survive restarts."""
        if self._may_change:
            return self._state.memory.setdefault(self._path, {})
        return dict(self._state.memory.get(self._path, {}))

    @property
    def learning_rate(self) -> float:
        """The learning rate before the schedule's factor."""
        return self._state.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._require_all_workers("changes the learning rate")
        self._state.learning_rate = float(value)

    def stop(self) -> None:
        """Ends the training after this epoch."""
        self._require_all_workers("stops the training")
        self._state.stopped_early = True

    def _require_all_workers(self, effect: str) -> None:
        if not self._may_change:
            raise ConfigError(
                f"train.callbacks: {self._path} {effect}, so it must run on all workers. "
                "Remove chief_only = True from it."
            )


class UserCallbacks:
    """All callbacks of the config that run on this worker."""

    def __init__(
        self,
        paths: Sequence[str],
        config_folder: Path,
        model: keras.Model,
        folder: Path,
        is_chief: bool,
    ):
        self._model, self._folder = model, folder
        self._callbacks: list[tuple[str, Any, bool]] = []
        for path in paths:
            callback = load_callback(path, config_folder)
            may_change = not getattr(callback, "chief_only", False)
            if may_change or is_chief:
                self._callbacks.append((path, callback, may_change))

    def call(self, name: str, state: TrainingState, *arguments: Epoch) -> None:
        """Calls the method `begin`, `after_epoch` or `end` of each callback that has it."""
        for path, callback, may_change in self._callbacks:
            is_function = callable(callback) and name == "after_epoch"
            method = callback if is_function else getattr(callback, name, None)
            if method is None:
                continue
            try:
                method(Run(state, path, self._model, self._folder, may_change), *arguments)
                state.model_dump_json()  # now, while the callback that set the memory is known
            except TrainyardError:
                raise
            except Exception as error:  # a user's code may raise any exception
                raise ConfigError(
                    f"train.callbacks: {path} raised {type(error).__name__} in {name}: {error}. "
                    "Correct it, then retry."
                ) from error


def load_callback(path: str, config_folder: Path) -> Any:
    """Loads a function or an object. Raises ConfigError if nothing of it would be called."""
    loaded = load_object(path, "train.callbacks", config_folder)
    kind = loaded if isinstance(loaded, type) else type(loaded)
    if issubclass(kind, keras.callbacks.Callback):
        raise ConfigError(
            f"train.callbacks: {path} is a callback of Keras ({kind.__name__}), "
            "whose methods are never called, because this training does not use model.fit. "
            "Write a class with after_epoch(self, run, epoch), or use train.early_stopping, "
            "train.reduce_learning_rate or train.best_checkpoint."
        )
    if isinstance(loaded, type):
        try:
            loaded = loaded()
        except Exception as error:
            raise ConfigError(
                f"train.callbacks: {path} cannot be created without arguments: "
                f"{type(error).__name__}: {error}. Give each of its parameters a default value."
            ) from error
    if not callable(loaded) and not any(callable(getattr(loaded, name, None)) for name in _METHODS):
        raise ConfigError(
            f"train.callbacks: {path} has none of the methods {', '.join(_METHODS)} "
            "and cannot be called, so it would do nothing. Add one of the methods."
        )
    return loaded
