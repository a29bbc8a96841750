"""`train.steps`: a training that ends after a number of steps, also in the middle of an epoch."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest
from gangs import ALONE, QUICK, read_state, run_gang

from pipeline_ops.config.train import Train
from pipeline_ops.contract.gang_protocol import TRAINED
from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.launch.train import check_dataset
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.training.weight_files import read_arrays

STEPS_PER_EPOCH = 22


@pytest.mark.parametrize(
    ("limits", "num_epochs", "length"),
    [
        ({}, 10, "10 epochs"),
        ({"epochs": 3}, 3, "3 epochs"),
        ({"steps": 1}, 1, "1 step"),
        ({"steps": 12}, 1, "12 steps"),
        ({"steps": 13}, 1, "13 steps"),  # of 8, in 100 examples: the 13th step begins the next one
        ({"steps": 14}, 2, "14 steps"),
        ({"steps": 125}, 10, "125 steps"),
        ({"steps": 126}, 11, "126 steps"),
        ({"steps": 14, "epochs": 1}, 1, "1 epoch or 14 steps"),
        ({"steps": 14, "epochs": 9}, 2, "9 epochs or 14 steps"),
    ],
)
def test_the_limit_that_is_reached_first_counts(limits, num_epochs, length):
    config = Train(model="digits_cnn", global_batch_size=8, **limits)
    assert (config.count_epochs(100), config.length) == (num_epochs, length)


def test_frozen_epochs_must_end_before_the_training(make_job, tmp_path):
    np.savez(file := tmp_path / "weights.npz", np.zeros(1))
    weights = {"train__warm_start": str(file), "train__freeze_epochs": 1}
    job = make_job("frozen", **options(5), **weights)
    with pytest.raises(ConfigError, match=r"the number of epochs \(1\), got 1. Raise train.steps"):
        check_dataset(job, Train.model_validate(job.request.config))


def test_data_that_fill_no_batch_end_the_job_before_its_gang(make_job):
    job = make_job("small", **options(5) | {"train__global_batch_size": 100_000})
    message = r"the train split of .* has \d+ examples, fewer than one global batch \(100000\)"
    with pytest.raises(DataError, match=message):
        check_dataset(job, Train.model_validate(job.request.config))


def options(steps: int) -> dict:
    cosine = {"type": "cosine", "warmup_steps": 4}
    return (
        QUICK
        | ALONE
        | {
            "train__epochs": None,
            "train__steps": steps,
            "train__optimizer__schedule": cosine,
        }
    )


@pytest.mark.parametrize("steps", [5, STEPS_PER_EPOCH])
@pytest.mark.training
def test_a_training_may_have_fewer_steps_than_an_epoch(make_job, host_pool, steps):
    job = make_job("short", **options(steps))
    run_gang(job, host_pool)
    [epoch] = read_state(job).history
    assert epoch.step == steps and epoch.metrics["validation_accuracy"] > 0
    events = ProgressReader(open_path(job.attempt.progress)).read_new()
    [last] = [event for event in events if event.epoch is not None]
    assert (last.done, last.total) == (steps, steps)


def test_the_last_part_of_an_epoch_counts_and_a_restart_changes_nothing(make_job, host_pool):
    steps = STEPS_PER_EPOCH + 9
    whole = make_job("whole", **options(steps))
    run_gang(whole, host_pool)
    first, last = read_state(whole).history
    assert (first.step, last.step) == (STEPS_PER_EPOCH, steps)
    assert read_state(whole).best_epoch == 1  # which is the cut one
    wave = (1 + math.cos(math.pi * (steps - 1 - 4) / (steps - 4))) / 2  # which ends there
    assert last.learning_rate == pytest.approx(1e-3 * wave)
    assert not np.isnan(last.metrics["loss"])
    history, weights = read_state(whole).history, read_arrays(whole.work / TRAINED)
    shutil.rmtree(whole.work)
    for limit in (STEPS_PER_EPOCH + 5, None):
        again = make_job(f"limit-{limit}", **options(steps))
        run_gang(again, host_pool, steps_limit=limit)
    assert "resumes from step 24" in again.attempt.progress.read_text()
    assert read_state(again).history == history
    for one, other in zip(weights, read_arrays(again.work / TRAINED), strict=True):
        assert np.array_equal(one, other)
