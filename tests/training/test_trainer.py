"""The trainer with fakes instead of TensorFlow's parts."""

from __future__ import annotations

import contextlib
import itertools
from types import SimpleNamespace
from unittest import mock

from pipeline_ops.card.collection import CardCollection
from pipeline_ops.config.train import Train
from pipeline_ops.models.task import BatchSums
from pipeline_ops.training.loop import StepResult
from pipeline_ops.training.stop_signal import StopSignal
from pipeline_ops.training.trainer import Trainer
from pipeline_ops.training.training_state import DivergedStep, TrainingState


def test_the_loop_is_not_called_when_all_steps_of_a_call_are_skipped():
    config = Train(
        model="digits_cnn",
        epochs=1,
        checkpoint_every_steps=1,
        early_stopping=None,
        best_checkpoint=None,
        reduce_learning_rate=None,
    )
    skipped = [DivergedStep(step=step, loss="nan", is_skipped=True) for step in (0, 2)]
    trained = []

    def train(batches, step, learning_rates, stop):
        assert learning_rates
        trained.extend(next(batches) for _ in learning_rates)
        return StepResult(BatchSums(3.0, (), 2.0), True, False, 1.5)

    state = TrainingState(learning_rate=0.1, divergences=skipped)
    trainer = Trainer(
        SimpleNamespace(steps_limit=None, is_chief=False),
        config,
        SimpleNamespace(metrics=(), validation_metrics=(), compute_from_counts=lambda counts: {}),
        SimpleNamespace(
            train=train,
            is_traced=True,
            learning_rate=0.1,
            evaluate=lambda batches: BatchSums(1.0, (), 1.0),
            get_best_weights=list,
            get_views=lambda: ([], []),
        ),
        SimpleNamespace(
            make_batches=itertools.count,
            compute_epoch_end=lambda epoch: 4,
            num_epochs=1,
            total_steps=4,
            validation=SimpleNamespace(num_examples=1),
            validation_batches=[],
            num_validation_batches=0,
            raise_errors=contextlib.nullcontext,
        ),
        mock.Mock(**{"restore_common.return_value": None}, saved_step=0),
        lambda: state,
        lambda step, total_steps: 1.0,
        mock.Mock(**{"has_batch_hooks": False, "is_empty": True}),
        None,
        StopSignal(),
        mock.Mock(),
        mock.Mock(gpus=[]),
        CardCollection(),
    )
    trainer.run()
    assert trained == [1, 3]
    assert trainer.state.step == 4
    assert trainer.state.history[0].metrics == {"loss": 1.5, "validation_loss": 1.0}
