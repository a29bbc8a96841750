from __future__ import annotations

from pipeline_ops.artifacts.results import Epoch
from pipeline_ops.config.train import BestCheckpoint, EarlyStopping, ReduceLearningRate, Train
from pipeline_ops.training.callbacks import end_epoch
from pipeline_ops.training.checkpoints import TrainingState


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
