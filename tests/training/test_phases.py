"""Phases of a training that last longer than a step may: slow is not dead, and a hang is found.

Two workers of a real gang. A step may take a second here.
"""

from __future__ import annotations

import time

import pytest
from gangs import QUICK, read_state, run_gang

from pipeline_ops.errors import MachineError
from pipeline_ops.jobs.progress import ProgressReader
from pipeline_ops.launch.gang import StopRequest
from pipeline_ops.storage.open_store import open_path

pytestmark = pytest.mark.training
STEPS_PER_EPOCH = 22
OPTIONS = QUICK | {
    "train__workers": 2,
    "train__epochs": 2,
    "train__checkpoint_every_steps": 1000,
    "train__step_timeout_seconds": 1,
    "train__steps_per_call": 1,
    "train__max_restarts": 1,
    "train__micro_batches": 8,  # and so more batches of the validation
    "train__model": "slow_phases:build",
}


@pytest.fixture
def make_slow_job(make_job, tmp_path):
    def make(seconds: float = 0.0, trouble=None, **options):
        parameters = {"seconds": seconds, "folder": str(tmp_path), "trouble": trouble}
        return make_job("slow", **OPTIONS | {"train__model_parameters": parameters} | options)

    return make


def read_events(job, name: str = "worker 0"):
    return ProgressReader(open_path(job.attempt.worker_progress(name))).read_new()


def read_steps(job, phase: str) -> list[int]:
    return [event.done for event in read_events(job) if event.phase == phase]


def test_a_slow_validation_is_alive_while_it_advances(make_slow_job, host_pool):
    """It lasts more than five times as long as a step may, and as a phase may be silent."""
    job = make_slow_job(4.0, train__phase_timeout_seconds=12)
    began, gang = time.monotonic(), run_gang(job, host_pool)
    assert gang.restarts == 0 and len(read_state(job).history) == 2
    validations = [event for event in read_events(job) if event.phase == "validate"]
    assert validations[0].done == 0 and validations[0].total > 1
    assert {0, 1} <= {event.done for event in validations}
    assert time.monotonic() - began > 2 * 4.0 * validations[0].total


@pytest.mark.parametrize(
    "hook",
    [
        "on_train_begin",
        "on_epoch_begin",
        "on_train_batch_begin",
        "on_train_batch_end",
        "on_test_begin",
        "on_test_end",
        "on_epoch_end",
        "on_train_end",
    ],
)
def test_a_slow_callback_is_no_slow_step(make_slow_job, host_pool, hook):
    """Also not of the worker that waits for it."""
    callback = {"slow_phases:SlowCallback": {"hook": hook, "seconds": 6.0}}
    job = make_slow_job(train__callbacks=[callback], train__epochs=1)
    assert run_gang(job, host_pool).restarts == 0
    assert len(read_state(job).history) == 1


def test_a_slow_disk_makes_no_slow_step(make_slow_job, host_pool):
    """The first checkpoint is still being written when the next one is due."""
    trouble = {"slow_in": ["saving"]}
    job = make_slow_job(6.0, trouble, train__epochs=1, train__checkpoint_every_steps=8)
    assert run_gang(job, host_pool).restarts == 0
    phases = [event.phase for event in read_events(job)]
    saved = phases.index("saving")
    assert "train" in phases[:saved]
    assert phases[saved + 1] == "train", "the clock of a step begins anew"


def test_a_hang_in_a_validation_is_found_and_costs_the_validation_alone(
    make_slow_job, host_pool, tmp_path
):
    (tmp_path / "hang").touch()
    job, messages = make_slow_job(train__phase_timeout_seconds=10), []

    def watch(event):
        if event.phase == "restart":
            (tmp_path / "hang").unlink()
            messages.append(event.message)

    assert run_gang(job, host_pool, watch).restarts == 1
    [message] = messages
    assert "has reported no progress for 10 s in the phase validate (train.phase_timeout" in message
    assert read_steps(job, "restored") == [STEPS_PER_EPOCH]
    assert len(read_state(job).history) == 2


def test_a_stop_during_a_validation_leaves_at_once_with_the_epoch_saved(
    make_slow_job, host_pool, tmp_path
):
    """SIGTERM to the job. All workers are in their first batch, and leave after it."""
    job, stop, asked = make_slow_job(2.0), StopRequest(), []

    def watch(event):
        if event.phase == "validate" and not asked:
            stop.is_requested = True
            asked.append(time.monotonic())

    with pytest.raises(MachineError, match="stopped by SIGTERM"):
        run_gang(job, host_pool, watch, stop=stop)
    assert time.monotonic() - asked[0] < 10
    assert read_steps(job, "preempted") == [STEPS_PER_EPOCH]
    assert run_gang(make_slow_job(2.0), host_pool).restarts == 0
    assert read_steps(job, "restored") == [STEPS_PER_EPOCH]
