"""Runs the policies of the config at the end of an epoch, and the user's Keras callbacks.

The policies lower the learning rate, remember the best epoch, and stop the training.

Keras's callbacks are called through `keras.callbacks.CallbackList`, with the hooks and the logs of
`Model.fit`, which `loop.py` replaces. They get a model of their own: a copy of the trained one,
with an optimizer and without a strategy. Before a hook, it gets weights and learning rate of the
training. Changes of these and of `stop_training` are applied to the training afterwards.

All workers call the callbacks with the same reduced figures, so all workers decide alike. For a
restart, the state holds the counters of Keras's callbacks and the result of `get_state` of others.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import callbacks as kinds
from keras.callbacks import Callback

from pipeline_ops.config.evaluate import rank_figure
from pipeline_ops.config.train import Train
from pipeline_ops.contract.results import Epoch
from pipeline_ops.errors import ConfigError, MachineError, TrainyardError
from pipeline_ops.input.framework_internals import (
    compare_only_finite,
    list_remembered,
    will_profile,
)
from pipeline_ops.models import load_object
from pipeline_ops.models.user_errors import explain, list_own_frames, locate
from pipeline_ops.storage.local_files import DISK_ERRORS
from pipeline_ops.training.loop import Loop
from pipeline_ops.training.training_state import TrainingState
from pipeline_ops.training.weight_files import Arrays
from pipeline_ops.user_code.opened_files import explain_unnamed_files

_log = logging.getLogger(__name__)

_CHIEF_ONLY = (kinds.CSVLogger, kinds.ModelCheckpoint, kinds.RemoteMonitor, kinds.TensorBoard)
"""Callbacks of Keras that only write. With several workers they would write everything again."""
_REFUSED = {
    keras.callbacks.BackupAndRestore: "The training has checkpoints of its own. Leave it out.",
    keras.callbacks.ProgbarLogger: "Log and progress page show it. Leave it out.",
    keras.callbacks.SwapEMAWeights: "Set train.optimizer.average_weights instead.",
}
_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_TEST_BATCH_HOOKS = ("on_test_batch_begin", "on_test_batch_end")
_MONITORS = (kinds.EarlyStopping, kinds.ModelCheckpoint, kinds.ReduceLROnPlateau)
_OWN = "get_state"
_PATHS = ("filepath", "filename", "log_dir")
"""Attributes of Keras's callbacks that name what they write."""


# The callbacks of the config


def end_epoch(config: Train, state: TrainingState, epoch: Epoch) -> None:
    """Appends the epoch to the history and runs every callback of the config."""
    state.history.append(epoch)
    monitor, plateau, stop = config.best_monitor, config.reduce_learning_rate, config.early_stopping
    best = max(state.history, key=lambda each: _rate(config, each, monitor)) if monitor else epoch
    state.best_epoch = best.epoch
    if plateau is not None:
        waited = _update_patience(
            state, "reduce_learning_rate", _rank(config, epoch, plateau.monitor)
        )
        if waited >= plateau.patience_epochs:
            rate = state.learning_rate * plateau.factor
            state.learning_rate = max(rate, plateau.min_learning_rate)
            state.patience["reduce_learning_rate"] = 0
    if stop is not None:
        waited = _update_patience(
            state, "early_stopping", _rank(config, epoch, stop.monitor), stop.min_delta
        )
        state.stopped_early |= waited >= stop.patience_epochs


def _rate(config: Train, epoch: Epoch, monitor: str) -> tuple[float, float]:
    """Returns a key that is larger for a better epoch. Of equal figures, the loss decides."""
    return _rank(config, epoch, monitor), _rank(config, epoch, "validation_loss")


def _rank(config: Train, epoch: Epoch, monitor: str) -> float:
    """Returns a number that is larger for a better figure, for one that is not finite -inf."""
    return rank_figure(epoch.metrics[monitor], config.find_mode(monitor) or "max")


def _update_patience(
    state: TrainingState, callback: str, rank: float, min_delta: float = 0.0
) -> int:
    """Returns the number of epochs since the monitored figure beat the callback's best.

    An equal value is no improvement. `rank` is that of the figure of the epoch.
    """
    is_better = callback not in state.best or rank > state.best[callback] + min_delta
    if is_better:
        state.best[callback] = rank
    state.patience[callback] = 0 if is_better else state.patience.get(callback, 0) + 1
    return state.patience[callback]


# Keras's callbacks


class KerasCallbacks:
    """The callbacks of `train.callbacks` on this worker.

    All workers make the same calls in the same order, because each reads the weights of the loop.
    `shown` is a model and the variables of its optimizer. The model is compiled, belongs to no
    strategy, and has the loop's variables in the loop's order. It is None without callbacks.
    `params` are those that callbacks get from `fit`.
    """

    def __init__(
        self,
        config: Train,
        config_folder: Path,
        loop: Loop,
        shown: tuple[keras.Model, Sequence[Any]] | None,
        folder: Path,
        is_chief: bool,
        params: Mapping[str, int],
    ):
        self._loop, self._is_chief = loop, is_chief
        self._model: Any = shown and shown[0]
        self._optimizer_variables = shown[1] if shown else []
        self._lists: list[_NamedList] = []
        self._shown: Arrays = []
        self._shown_step: int | None = None
        for path, arguments in config.callback_arguments:
            callbacks = load_callbacks(path, arguments, config, config_folder)
            self._lists.append(_NamedList(path, callbacks, folder))
        for each in self._get_own():
            each.open(self._model, params)
        self.has_batch_hooks = any(each.has_batch_hooks for each in self._lists)
        """Whether a callback is called for each step, so that each step is a call of its own."""

    def begin(self, state: TrainingState) -> None:
        """Calls `on_train_begin`, then restores what a checkpoint holds of the callbacks."""
        is_resumed = bool(state.callbacks)
        if is_resumed:
            for each in self._get_own():
                each.prepare_to_continue(len(state.history))
        self._shown_step = None
        before = state.learning_rate, state.stopped_early
        self.call("on_train_begin", state, keep_weights=is_resumed)
        if is_resumed:
            state.learning_rate, state.stopped_early = before
            for each, saved in zip(self._lists, state.callbacks, strict=True):
                each.restore(saved)
            anew = {each.path for each in self._lists if each.begins_anew}
            state.warnings += [
                f"train.callbacks: {path} has no get_state and set_state, so the state of its own "
                f"code began anew after step {state.step}, where the training was restarted"
                for path in sorted(anew)
            ]

    def save(self, state: TrainingState) -> None:
        """Puts what the callbacks remember into the state. Raises ConfigError."""
        state.callbacks = [each.save() for each in self._lists]

    @property
    def is_empty(self) -> bool:
        return self._model is None

    def call(
        self, hook: str, state: TrainingState, *arguments: Any, keep_weights: bool = False
    ) -> bool:
        """Calls a hook of all callbacks. Returns whether they have changed the weights.

        Raises ConfigError if one of them fails, or does what it cannot do here.
        """
        if self._model is None:
            return False
        self._show(state)
        trainable = _list_trainable(self._model)
        has_changed_weights = False
        for each in self._get_own():
            if not each.has_batch_hooks and hook in _BATCH_HOOKS:
                continue
            arguments = each.call(hook, *arguments)
            if _list_trainable(self._model) != trainable:
                raise ConfigError(
                    f"train.callbacks: {each.path} changes which weights learn. "
                    "Use train.freeze or train.freeze_epochs."
                )
            changes = self._take_changes(state, keep_weights)
            has_changed_weights |= "the weights" in changes
            if changes and each.is_chief_only:
                raise ConfigError(
                    f"train.callbacks: {each.path} changes {' and '.join(changes)}, so it must run "
                    "on all workers. Remove chief_only = True from it."
                )
        return has_changed_weights

    def _get_own(self) -> list[_NamedList]:
        """Those that run on this worker."""
        return [each for each in self._lists if self._is_chief or not each.is_chief_only]

    def _show(self, state: TrainingState) -> None:
        """Gives the callbacks' model the state of the training."""
        if self._shown_step != state.step:
            weights, optimizer_values = self._loop.get_views()
            self._shown = [np.array(value) for value in weights]
            pairs = [*zip(self._model.weights, self._shown, strict=True)]
            pairs += zip(self._optimizer_variables, optimizer_values, strict=True)
            for variable, value in pairs:
                variable.assign(value)
            self._shown_step = state.step
        if self._loop.learning_rate is not None:
            self._model.optimizer.learning_rate = state.learning_rate
        self._model.stop_training = state.stopped_early

    def _take_changes(self, state: TrainingState, keep_weights: bool) -> list[str]:
        """Applies a callback's changes to the training. Returns their names."""
        changes = []
        if self._loop.learning_rate is not None:
            rate = float(keras.ops.convert_to_numpy(self._model.optimizer.learning_rate))
            if rate != float(np.float32(state.learning_rate)):
                state.learning_rate = rate
                changes.append("the learning rate")
        if self._model.stop_training and not state.stopped_early:
            state.stopped_early = True
            changes.append("the end of the training")
        weights = [np.array(each) for each in self._model.get_weights()]
        if not all(map(np.array_equal, weights, self._shown)):
            changes.append("the weights")
            self._shown = weights
            if keep_weights:
                self._shown_step = None
            else:
                self._loop.assign(weights)
        return changes


class _NamedList:
    """The callbacks of one entry of `train.callbacks`, in a list of Keras."""

    def __init__(self, path: str, callbacks: Sequence[Callback], folder: Path):
        self.path, self._callbacks, self._folder = path, callbacks, folder
        self.is_chief_only = all(
            isinstance(each, _CHIEF_ONLY) or getattr(each, "chief_only", False)
            for each in callbacks
        )
        self.has_batch_hooks = any(map(_has_batch_hooks, callbacks))
        self.begins_anew = not all(map(_is_restorable, callbacks))
        """Whether a restart loses the state of an author's code."""
        self._list: keras.callbacks.CallbackList
        self._last = _Last()

    def open(self, model: keras.Model | None, params: Mapping[str, Any]) -> None:
        """Gives the callbacks their model, to which some of them react at once."""
        with self._run("set_model"):
            callbacks = [*self._callbacks, self._last]
            self._list = keras.callbacks.CallbackList(callbacks, model=model, **params)

    def call(self, hook: str, *arguments: Any) -> tuple[Any, ...]:
        """Calls a hook. Returns the arguments for the next list."""
        with self._run(hook):
            getattr(self._list, hook)(*arguments)
        return (arguments[0], self._last.logs) if hook == "on_epoch_end" else arguments

    @contextlib.contextmanager
    def _run(self, hook: str) -> Iterator[None]:
        """Runs the user's code in the folder, and converts its errors."""
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with contextlib.chdir(self._folder):
                yield
        except TrainyardError:
            raise
        except Exception as error:  # a user's code may raise any exception
            paths = [] if self.path.startswith("keras.") else [self.path]
            kind, cause = explain(error)
            message = (
                f"train.callbacks: {self.path} raised {kind} in {hook}: {cause}"
                f"{locate(list_own_frames(error, paths))}"
            )
            if isinstance(error, OSError) and error.errno in DISK_ERRORS:
                raise MachineError(message, "Repair the disk, then retry.") from error
            _log.exception("a callback has failed")
            raise ConfigError(message, "Correct it, then retry.") from error

    def prepare_to_continue(self, num_epochs: int) -> None:
        """Makes files continue after the given epochs."""
        for callback in self._callbacks:
            if isinstance(callback, keras.callbacks.CSVLogger):
                callback.append = True
                file = self._folder / callback.filename
                if file.exists():
                    lines = file.read_text().splitlines(keepends=True)
                    file.write_text("".join(lines[: 1 + num_epochs]))

    def save(self) -> list[dict[str, Any]]:
        """Returns what each callback remembers, as JSON."""
        states = []
        for callback in self._callbacks:
            state = {name: getattr(callback, name, None) for name in list_remembered(callback)}
            if hasattr(callback, "get_state"):
                with self._run("get_state"):
                    state[_OWN] = callback.get_state()
            try:
                states.append({name: _encode(value) for name, value in state.items()})
            except TypeError as error:
                raise ConfigError(
                    f"train.callbacks: {self.path}: {error} in what its get_state returns, which a "
                    "checkpoint cannot hold. Return numbers, texts, lists, dictionaries or arrays."
                ) from None
        return states

    def restore(self, saved: Sequence[Mapping[str, Any]]) -> None:
        for callback, state in zip(self._callbacks, saved, strict=True):
            for name in list_remembered(callback) & state.keys():
                setattr(callback, name, _decode(state[name]))
            if hasattr(callback, "set_state") and _OWN in state:
                with self._run("set_state"):
                    callback.set_state(_decode(state[_OWN]))


class _Last(Callback):
    """Gets the logs after the callbacks before it, some of which add the learning rate."""

    logs: dict[str, float]

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.logs = logs or {}


def load_callbacks(
    path: str, arguments: Mapping[str, Any], config: Train, config_folder: Path
) -> list[Callback]:
    """Loads the callbacks of one entry of `train.callbacks`.

    The entry names a subclass of `keras.callbacks.Callback`, an instance, or a function that
    returns one or a list of them. Raises ConfigError for anything that cannot work here.
    """
    where = f"train.callbacks: {path}"
    loaded = load_object(path, "train.callbacks", config_folder)
    if isinstance(loaded, Callback):
        if arguments:
            raise ConfigError(f"{where} is an object, which takes no arguments. Name its class.")
    elif loaded in (keras.callbacks.LambdaCallback, keras.callbacks.LearningRateScheduler):
        raise ConfigError(
            f"{where} takes functions, which a YAML does not have. Name a function of your own "
            "that returns it: my_callbacks:make_it"
        )
    elif callable(loaded):
        try:
            with explain_unnamed_files(config_folder, where):
                loaded = loaded(**arguments)
        except ConfigError:
            raise
        except Exception as error:  # a user's code may raise any exception
            raise ConfigError(
                f"{where} cannot be created: {type(error).__name__}: {error}",
                f"Correct its arguments: {path}: {{name: value}}",
            ) from error
    callbacks = list(loaded) if isinstance(loaded, list | tuple) else [loaded]
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"{where} gives an object of the class {type(callback).__name__}. It must be a "
                "subclass of keras.callbacks.Callback, an object of one, or a function that "
                "returns such an object."
            )
        _check(callback, where, config)
    return callbacks


def _check(callback: Callback, where: str, config: Train) -> None:
    """Raises ConfigError if a callback cannot do here what it does in `fit`."""
    for kind, remedy in _REFUSED.items():
        if isinstance(callback, kind):
            raise ConfigError(f"{where} is a {kind.__name__}, which has no use here. {remedy}")
    is_of_keras = type(callback).__module__.startswith("keras.")
    if not is_of_keras and any(_overrides(callback, hook) for hook in _TEST_BATCH_HOOKS):
        raise ConfigError(
            f"{where} has a hook for the batches of the validation. They are not the same on "
            "every worker, so it is not called. Use on_test_end, which gets the figures of all."
        )
    for name in _PATHS if isinstance(callback, _CHIEF_ONLY) else ():
        value = os.fspath(getattr(callback, name, ""))
        if os.path.isabs(value) or "://" in value or ".." in Path(value).parts:
            raise ConfigError(
                f"{where} writes to {value}. Name a relative path: what callbacks write becomes "
                "part of the training's artifact, in its folder callbacks."
            )
    if isinstance(callback, _MONITORS):
        names = ["learning_rate", "loss", *config.step_metric_names]
        names += [f"val_{name}" for name in ("loss", *config.metric_names)]
        if callback.monitor not in names:
            raise ConfigError(
                f"{where} monitors {callback.monitor!r}, which is not among the logs: "
                f"{', '.join(names)}. A figure of the gate is computed if "
                "train.best_checkpoint.monitor names it: validation_macro_recall"
            )
        if callback.mode == "auto":  # which Keras derives from compiled metrics
            mode = config.find_mode(callback.monitor)
            if mode is None:
                raise ConfigError(
                    f"{where} monitors {callback.monitor}. "
                    f"{config.explain_mode(callback.monitor)}, or give the callback its mode."
                )
            callback.mode = mode
        # Where the first figure is NaN, Keras compares with it for ever. It takes inf for the best.
        compare_only_finite(callback)


def to_logs(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the figures of an epoch under the names that `fit` gives them."""
    prefix = "validation_"
    return {
        f"val_{name.removeprefix(prefix)}" if name.startswith(prefix) else name: value
        for name, value in metrics.items()
    }


def _has_batch_hooks(callback: Callback) -> bool:
    """Returns whether a callback has to be called for each step."""
    if type(callback) is kinds.ModelCheckpoint:
        return callback.save_freq != "epoch"
    if type(callback) is kinds.TensorBoard:
        return callback.update_freq != "epoch" or will_profile(callback)
    if type(callback) is kinds.TerminateOnNaN:
        return False  # `train.on_divergence` ends a training at such a step
    return any(_overrides(callback, hook) for hook in _BATCH_HOOKS)


def _overrides(callback: Callback, hook: str) -> bool:
    return getattr(getattr(callback, hook), "__func__", None) is not getattr(Callback, hook)


def _list_trainable(model: keras.Model) -> list[bool]:
    return [variable.trainable for variable in model.weights]


def _is_restorable(callback: Callback) -> bool:
    """Returns whether a checkpoint holds all that a callback remembers."""
    has_authors_code = isinstance(callback, kinds.LambdaCallback) or not type(
        callback
    ).__module__.startswith("keras.")
    return not has_authors_code or all(
        hasattr(callback, name) for name in ("get_state", "set_state")
    )


def _encode(value: Any) -> Any:
    """Returns a value as JSON. Raises TypeError that names what has no JSON."""
    match value:
        case np.generic():
            return _encode(value.item())
        case float() if not math.isfinite(value):
            return {"float": repr(value)}
        case None | bool() | int() | float() | str():
            return value
        case list():
            return [*map(_encode, value)]
        case tuple():
            return {"tuple": [*map(_encode, value)]}
        case dict():
            return {"items": [[_encode(key), _encode(each)] for key, each in value.items()]}
        case np.ndarray() if value.dtype != object:
            content = base64.b64encode(value.tobytes()).decode()
            return {"array": content, "type": value.dtype.str, "shape": value.shape}
    raise TypeError(f"there is a {type(value).__name__}")


def _decode(encoded: Any) -> Any:
    match encoded:
        case {"float": text}:
            return float(text)
        case {"tuple": values}:
            return tuple(map(_decode, values))
        case {"items": items}:
            return {_decode(key): _decode(value) for key, value in items}
        case {"array": content, "type": kind, "shape": shape}:
            data = np.frombuffer(base64.b64decode(content), np.dtype(kind))
            return data.reshape(shape).copy()
        case list():
            return [*map(_decode, encoded)]
    return encoded
