"""Gangs take steps of the author's own, are restarted, and call callbacks in between."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from gangs import ALONE, QUICK, KillOnce, distance, read_state, run_gang

from pipeline_ops.contract.gang_protocol import TRAINED
from pipeline_ops.training.weight_files import read_arrays

OWN = "acme_vision.own_steps"
PLAIN = {**QUICK, "train__reduce_learning_rate": None}


def train(make_job, host_pool, name: str, on_event=None, **options):
    job = make_job(name, **PLAIN | options)
    shutil.rmtree(job.work, ignore_errors=True)  # equal trainings share it
    run_gang(job, host_pool, on_event)
    return read_state(job), read_arrays(job.work / TRAINED)


@pytest.mark.training
@pytest.mark.parametrize(
    ("options", "is_alone_equal"),
    [
        ({"train__model": f"{OWN}:gan"}, False),
        ({"train__model": f"{OWN}:Accumulating"}, True),
        ({"train__model": f"{OWN}:compiled"}, True),
        ({"train__model": f"{OWN}:plain", "train__step": f"{OWN}:contrastive_step"}, True),
    ],
    ids=lambda value: str(value),
)
def test_a_killed_worker_changes_no_bit(make_job, host_pool, options, is_alone_equal):
    kill, options = KillOnce("killed", after=20), options | {"train__workers": 2}
    _, gang = train(make_job, host_pool, "gang", **options)
    _, again = train(make_job, host_pool, "killed", kill, **options)
    assert kill.is_done
    assert distance(gang, again) == 0
    if is_alone_equal:
        _, alone = train(make_job, host_pool, "alone", **options | ALONE)
        assert distance(alone, gang) < 2e-5


@pytest.mark.training
def test_callbacks_and_early_stopping_work_with_a_step_of_ones_own(make_job, host_pool):
    """The callbacks' model has the weights and the rate of the loop, and may change both."""
    events = []
    options = {
        "train__model": f"{OWN}:Stepping",
        "train__workers": 2,
        "train__epochs": 4,
        "train__callbacks": [
            {"keras.callbacks:ReduceLROnPlateau": {"monitor": "val_loss", "patience": 1}},
            f"{OWN}:stop_after_three",
        ],
        "train__best_checkpoint": {"monitor": "validation_loss"},
    }
    state, weights = train(make_job, host_pool, "watched", events.append, **options)
    assert len(state.history) == 3
    figures = state.history[-1].metrics
    assert {"loss", "hits", "validation_loss", "validation_hits"} <= set(figures)
    assert figures["validation_hits"] == pytest.approx(figures["validation_accuracy"])
    assert all(np.isfinite(each).all() for each in weights)
    told = [event.message or "" for event in events]
    assert any("each step is Stepping.train_step, with Adam" in message for message in told)


@pytest.mark.training
def test_layers_of_a_module_that_also_has_a_metric_train_in_a_gang(make_job, host_pool):
    options = {
        "train__model": "acme_vision.beside:build",
        "train__metrics": ["acme_vision.beside:second"],
    }
    _, alone = train(make_job, host_pool, "alone", **options | ALONE)
    _, gang = train(make_job, host_pool, "gang", **options, train__workers=2)
    assert distance(alone, gang) < 2e-5
