"""The number of workers changes nothing: same global batches, same gradients, same weights."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline_ops.contracts.config_train import Train
from pipeline_ops.contracts.gang import TRAINED, worker_digest_name
from pipeline_ops.launch.fleet import Fleet
from pipeline_ops.launch.gang import Gang
from pipeline_ops.launch.local import LocalLauncher
from pipeline_ops.training.state import read_arrays

STEPS = 50
SGD = {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9}
ADAMW = {"name": "adamw", "learning_rate": 1e-3, "weight_decay": 0.01}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    fleet = Fleet(LocalLauncher(), "equality", tmp_path_factory.mktemp("host"))
    yield fleet
    fleet.close()


def trained_weights(job, fleet) -> list[np.ndarray]:
    gang = Gang(Train.model_validate(job.request.config), job.attempt, job.work, fleet, job.progress.forward, steps_limit=STEPS)
    job.work.mkdir(parents=True)
    gang.run()
    assert gang.restarts == 0
    digests = {(job.work / worker_digest_name(w)).read_text() for w in range(gang.config.workers)}
    assert len(digests) == 1, "the workers of one gang ended with different weights"
    return read_arrays(job.work / TRAINED)


def distance(a: list[np.ndarray], b: list[np.ndarray]) -> float:
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))


def test_one_two_and_four_workers_give_the_same_weights_after_fifty_steps(make_job, fleet):
    alone = trained_weights(make_job("alone", train__strategy="one_device", train__workers=1), fleet)
    for workers in (1, 2, 4):
        weights = trained_weights(make_job(f"gang-{workers}", train__workers=workers), fleet)
        assert distance(alone, weights) <= 1e-6, f"{workers} workers"


def test_another_seed_gives_other_weights(make_job, fleet):
    """So that the comparison above can fail."""
    jobs = [make_job(f"seed-{seed}", train__strategy="one_device", train__workers=1, train__seed=seed) for seed in (1, 2)]
    one, other = (trained_weights(job, fleet) for job in jobs)
    assert distance(one, other) > 1e-2


@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_every_optimizer_is_independent_of_the_number_of_workers(make_job, fleet, optimizer):
    alone = trained_weights(make_job("alone", train__strategy="one_device", train__workers=1, train__optimizer=optimizer), fleet)
    together = trained_weights(make_job("together", train__workers=2, train__optimizer=optimizer), fleet)
    assert distance(alone, together) <= 1e-6
