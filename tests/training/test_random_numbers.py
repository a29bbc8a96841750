"""Dropout and noise are drawn from the seed, the step and the replica, so a killed training draws
the same numbers after its restart."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from gangs import ALONE, run_gang

from pipeline_ops.contract.gang_protocol import TRAINED
from pipeline_ops.contract.results import CALLBACKS
from pipeline_ops.training.loop import SeedGenerators, find_states
from pipeline_ops.training.weight_files import read_arrays

FEW = {
    "train__model": "acme_vision.nets:dropping",
    "train__epochs": 2,
    "train__checkpoint_every_steps": 8,
    "train__steps_per_call": 3,
    "train__early_stopping": None,
    "train__best_checkpoint": None,
    "train__optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train__callbacks": ["own_watchers:DieOnce"],
}
SLIM = ALONE | {"train__model": "acme_vision.old:build"}
SLIM_WITH_DROPOUT = SLIM | {"train__model_parameters": {"dropout": 0.5}}

CASES = {
    "two workers": {"train__workers": 2},
    "one device": ALONE,
    "tf-slim": SLIM_WITH_DROPOUT,
    "two devices": {
        "train__strategy": "mirrored",
        "train__workers": 1,
        "train__devices_per_worker": 2,
    },
    "parameter servers": {
        "train__strategy": "parameter_server",
        "train__workers": 1,
        "train__parameter_servers": 1,
        "train__micro_batches": 2,
    },
    "divided layers": ALONE
    | {
        "train__strategy": "dtensor",
        "train__devices_per_worker": 2,
        "train__sharding": {"*/logits/kernel": 0},
    },
    "xla": ALONE | {"train__xla": "step"},
    "micro-batches": {"train__workers": 2, "train__micro_batches": 2},
}


@pytest.fixture
def train(make_job_in, dataset, tmp_path, host_pool):
    """Returns the weights after two epochs. The chief is killed at the end of the first, unless the
    training is calm."""

    def train(options: dict, is_calm: bool) -> list[np.ndarray]:
        job = make_job_in(tmp_path / f"root-{is_calm}", dataset)("attempt", **(FEW | options))
        (job.work / CALLBACKS).mkdir(parents=True)
        if is_calm:
            (job.work / CALLBACKS / "died").touch()
        gang = run_gang(job, host_pool)
        assert gang.restarts == (0 if is_calm else 1)
        return read_arrays(job.work / TRAINED)

    return train


def distance(a: list[np.ndarray], b: list[np.ndarray]) -> float:
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))


@pytest.mark.training
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_a_training_that_was_killed_draws_what_it_would_have_drawn(train, options):
    assert distance(train(options, is_calm=True), train(options, is_calm=False)) <= 1e-6


@pytest.mark.training
def test_other_draws_give_other_weights(train):
    """Shows that the comparison above can fail."""
    assert distance(train(SLIM, is_calm=True), train(SLIM_WITH_DROPOUT, is_calm=False)) > 1e-2


def test_each_generator_step_and_replica_draws_for_itself_and_the_same_again():
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dropout(0.5),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
        ]
    )
    generators = SeedGenerators(model)
    assert [variable.name for variable in find_states(model)] == [
        "moving_mean",
        "moving_variance",
    ]
    drawn = {
        (step, part): [tuple(state.numpy()) for state in generators.compute_states(step, part)]
        for step in range(9)
        for part in range(3)
    }
    assert len({state for states in drawn.values() for state in states}) == 9 * 3 * 2
    assert [tuple(state.numpy()) for state in generators.compute_states(4, 1)] == drawn[4, 1]
    images = np.ones((64, 4), np.float32)

    def answers(step: int) -> np.ndarray:
        generators.set_states(step, 1)
        return model(images, training=True).numpy()

    first = answers(4)
    assert (answers(5) != first).any()
    assert (answers(4) == first).all()
