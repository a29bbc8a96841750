from __future__ import annotations

import contextlib
import math
import re

import keras
import numpy as np
import pytest

from pipeline_ops.config.train import BestCheckpoint, EarlyStopping, ReduceLearningRate, Train
from pipeline_ops.contract.results import Epoch
from pipeline_ops.errors import ConfigError
from pipeline_ops.training.callbacks import KerasCallbacks, end_epoch, load_callbacks
from pipeline_ops.training.training_state import TrainingState


def run(config: Train, validation: list[tuple[float, float]]) -> list[TrainingState]:
    """Returns the state after each epoch, for validation losses and accuracies by epoch."""
    state, states = TrainingState(learning_rate=0.1), []
    for number, (loss, accuracy) in enumerate(validation):
        metrics = {
            "loss": 0,
            "accuracy": 0,
            "validation_loss": loss,
            "validation_accuracy": accuracy,
        }
        epoch = Epoch(epoch=number, step=number, metrics=metrics, learning_rate=0.1)
        end_epoch(config, state, epoch)
        state = TrainingState.model_validate_json(
            state.model_dump_json()
        )  # as if restarted after every epoch
        states.append(state.model_copy(deep=True))
    return states


def train(**sections) -> Train:
    return Train(model="digits_cnn", workers=1, **sections)


def test_training_stops_when_the_loss_has_not_improved_for_the_patience():
    states = run(
        train(early_stopping=EarlyStopping(monitor="validation_loss", patience_epochs=2)),
        [(1.0, 0), (0.9, 0), (0.95, 0), (0.9, 0)],
    )
    assert [s.stopped_early for s in states] == [False, False, False, True]


def test_an_improvement_starts_the_patience_anew():
    states = run(
        train(early_stopping=EarlyStopping(monitor="validation_loss", patience_epochs=2)),
        [(1.0, 0), (1.1, 0), (0.9, 0), (1.0, 0)],
    )
    assert not states[-1].stopped_early


def test_an_improvement_smaller_than_min_delta_does_not_count():
    stopping = EarlyStopping(monitor="validation_accuracy", patience_epochs=1, min_delta=0.1)
    assert run(train(early_stopping=stopping), [(0, 0.5), (0, 0.55)])[-1].stopped_early


def test_the_learning_rate_is_reduced_on_a_plateau_and_not_below_its_minimum():
    plateau = ReduceLearningRate(
        monitor="validation_loss", factor=0.5, patience_epochs=1, min_learning_rate=0.03
    )
    states = run(train(reduce_learning_rate=plateau), [(1.0, 0), (1.0, 0), (1.0, 0), (1.0, 0)])
    assert [s.learning_rate for s in states] == [0.1, 0.05, 0.03, 0.03]


def test_of_epochs_with_equal_accuracy_the_best_has_the_lowest_loss_and_else_is_the_earliest():
    states = run(
        train(best_checkpoint=BestCheckpoint(monitor="validation_accuracy")),
        [(3, 0.5), (2, 0.7), (1, 0.7), (1, 0.7), (0, 0.6)],
    )
    assert [s.best_epoch for s in states] == [0, 1, 2, 2, 2]


def test_without_best_checkpoint_the_last_epoch_counts():
    assert run(train(best_checkpoint=None), [(1, 0.9), (2, 0.1)])[-1].best_epoch == 1


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([NAN, 0.9, 0.5, 0.3, 0.2], 4),
        ([0.9, NAN, 0.5, 0.3, 0.2], 4),
        ([0.9, 0.5, -INF, 0.3, NAN], 3),
        ([INF, NAN, 0.5, 0.4, 0.6], 3),
    ],
)
def test_a_loss_that_is_not_finite_is_the_worst(losses, best):
    monitor = {"monitor": "validation_loss"}
    config = train(
        best_checkpoint=BestCheckpoint(**monitor),
        early_stopping=EarlyStopping(**monitor, patience_epochs=2),
        reduce_learning_rate=ReduceLearningRate(**monitor, patience_epochs=2),
    )
    state = run(config, [(loss, 0.5) for loss in losses])[-1]
    assert (state.best_epoch, state.stopped_early, state.learning_rate) == (best, False, 0.1)


def test_an_infinite_accuracy_is_not_the_best():
    monitor = {"monitor": "validation_accuracy"}
    config = train(
        best_checkpoint=BestCheckpoint(**monitor),
        early_stopping=EarlyStopping(**monitor, patience_epochs=2),
    )
    states = run(config, [(1, INF), (1, 0.5), (1, INF), (1, 0.6), (1, NAN), (1, INF)])
    assert [state.best_epoch for state in states] == [0, 1, 1, 3, 3, 3]
    assert [state.stopped_early for state in states] == [*[False] * 5, True]


def test_figures_that_are_never_finite_end_the_patience():
    stopping = EarlyStopping(monitor="validation_loss", patience_epochs=2)
    states = run(train(early_stopping=stopping), [(NAN, 0), (INF, 0), (NAN, 0)])
    assert [state.stopped_early for state in states] == [False, False, True]


@pytest.mark.parametrize(("mode", "best"), [("min", 1), ("max", 0)])
def test_the_mode_of_an_own_metric_decides(mode, best):
    config = train(
        metrics=[{"own:an_error": {"mode": mode}}],
        best_checkpoint=BestCheckpoint(monitor="validation_an_error"),
    )
    state = TrainingState(learning_rate=0.1)
    for number, value in enumerate((0.8, 0.2)):
        metrics = {"validation_loss": 1.0, "validation_an_error": value}
        end_epoch(config, state, Epoch(epoch=number, step=1, metrics=metrics, learning_rate=0.1))
    assert state.best_epoch == best


LOGS = ([NAN, 0.9, 0.5, 0.3, 0.2], [0.9, NAN, 0.5, 0.3, -INF])


@pytest.mark.parametrize("losses", LOGS)
def test_callbacks_of_keras_take_a_figure_that_is_not_finite_for_the_worst(losses, tmp_path):
    paths = {
        "keras.callbacks:EarlyStopping": {"monitor": "val_loss", "patience": 3},
        "keras.callbacks:ReduceLROnPlateau": {"monitor": "val_loss", "patience": 3},
        "keras.callbacks:ModelCheckpoint": {
            "filepath": "best-{epoch}.weights.h5",
            "monitor": "val_loss",
            "save_best_only": True,
            "save_weights_only": True,
        },
    }
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rate = float(model.optimizer.learning_rate)
    with contextlib.chdir(tmp_path):
        for path, arguments in paths.items():
            [callback] = load_callbacks(path, arguments, train(), tmp_path)
            callback.set_model(model)
            callback.on_train_begin()
            for epoch, loss in enumerate(losses):
                callback.on_epoch_begin(epoch)
                callback.on_epoch_end(epoch, {"val_loss": loss})
            assert callback.best == min(filter(math.isfinite, losses))
    assert not model.stop_training and float(model.optimizer.learning_rate) == rate
    kept = {1 + number for number, loss in enumerate(losses) if math.isfinite(loss)}
    assert {int(re.sub(r"\D", "", file.stem)) for file in tmp_path.glob("*.h5")} == kept


def test_a_callback_of_keras_on_an_own_metric_needs_its_direction(tmp_path):
    path, given = "keras.callbacks:EarlyStopping", {"monitor": "val_brier"}
    config = train(metrics=[{"own:brier": {"mode": "min"}}])
    [callback] = load_callbacks(path, given, config, tmp_path)
    assert callback.mode == "min"
    config = train(metrics=["own:brier"])
    [callback] = load_callbacks(path, given | {"mode": "max"}, config, tmp_path)
    assert callback.mode == "max"
    with pytest.raises(ConfigError, match="monitors val_brier. Nothing says whether own:brier is"):
        load_callbacks(path, given, config, tmp_path)


class Resting:
    """A loop whose weights stay."""

    learning_rate = 0.1

    def get_views(self):
        return [np.ones((1, 1), np.float32), np.zeros(1, np.float32)], [np.int64(0)]


class Counter(keras.callbacks.Callback):
    def __init__(self, folder="mine"):
        super().__init__()
        self.folder, self.counts = folder, {(0, "a"): np.arange(2.0)}

    def get_state(self):
        return self.counts

    def set_state(self, state):
        self.counts = state


def open_callbacks(folder, entries):
    """Returns the callbacks of a training, and the objects."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    opened = KerasCallbacks(
        train(callbacks=entries),
        folder,
        Resting(),
        (model, model.optimizer.variables[:1]),
        folder / "callbacks",
        True,
        {},
    )
    return opened, [each for named in opened._lists for each in named._callbacks]


HOSTILE = ("filepath", "log_dir", "root", "filename", "folder", "monitor", "__dict__", "_train_dir")


def test_a_restart_restores_what_callbacks_remember_and_nothing_else(tmp_path):
    """M1: a checkpoint in a shared bucket let callbacks write to any path."""
    entries = [
        {"keras.callbacks:ModelCheckpoint": {"filepath": "best.keras", "save_best_only": True}},
        {"keras.callbacks:EarlyStopping": {"restore_best_weights": True}},
        {"keras.callbacks:CSVLogger": {"filename": "log.csv"}},
        f"{Counter.__module__}:Counter",
    ]
    opened, (checkpoint, stopping, _, counter) = open_callbacks(tmp_path, entries)
    opened.begin(state := TrainingState(learning_rate=0.1))
    checkpoint.best, stopping.wait, stopping.best = 0.25, 3, -INF
    stopping.best_weights, counter.counts[1] = [np.full(2, NAN)], np.arange(3.0)
    opened.save(state)
    state = TrainingState.model_validate_json(state.model_dump_json())
    for [saved] in state.callbacks:
        saved |= dict.fromkeys(HOSTILE, str(tmp_path / "elsewhere"))
    opened, objects = open_callbacks(tmp_path, entries)
    before = [{name: vars(each).get(name) for name in HOSTILE} for each in objects]
    opened.begin(state)
    assert [{name: vars(each).get(name) for name in HOSTILE} for each in objects] == before
    checkpoint, stopping, _, counter = objects
    assert (checkpoint.best, stopping.wait, stopping.best) == (0.25, 3, -INF)
    assert np.isnan(stopping.best_weights).all()
    assert {key: value.tolist() for key, value in counter.counts.items()} == {
        (0, "a"): [0.0, 1.0],
        1: [0.0, 1.0, 2.0],
    }
    assert state.warnings == []


class OwnStopping(keras.callbacks.EarlyStopping):
    pass


class OnlySet(keras.callbacks.Callback):
    def set_state(self, state):
        raise AssertionError("nothing was saved")


def count_epochs():
    epochs = []
    return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append(epoch))


@pytest.mark.parametrize("entry", [OwnStopping, OnlySet, count_epochs])
def test_a_state_that_a_restart_loses_is_told(tmp_path, entry):
    path = f"{Counter.__module__}:{entry.__name__}"
    opened, [callback] = open_callbacks(tmp_path, [path])
    opened.begin(state := TrainingState(learning_rate=0.1))
    if entry is OwnStopping:
        callback.wait = 3
    opened.save(state)
    opened, [callback] = open_callbacks(tmp_path, [path])
    opened.begin(state)
    assert getattr(callback, "wait", 3) == 3
    [warning] = state.warnings
    assert f"{path} has no get_state and set_state, so the state of its own code" in warning
