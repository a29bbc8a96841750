"""Divergence: the step is found, its batch is saved, and the policy of the config is applied."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from gangs import ALONE, QUICK, train

from pipeline_ops.contract.gang_protocol import TRAINED
from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.contract.results import DIVERGED
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.training.weight_files import read_arrays

BROKEN_KEY = "120"


def messages(job, phase: str) -> list[str]:
    return [
        moment.message
        for moment in ProgressReader(open_path(job.attempt.progress)).read_new()
        if moment.phase == phase
    ]


@pytest.mark.training
def test_a_batch_that_diverges_is_found_left_out_and_kept(make_broken, host_pool):
    """Any number of workers finds it at the same step, once in each epoch."""
    skip = {"train__on_divergence__action": "skip_batch"}
    alone = make_broken("alone", **ALONE, **skip)
    state = train(alone, host_pool)
    assert [d.is_skipped for d in state.divergences] == [True, True]
    assert all(np.isfinite(list(epoch.metrics.values())).all() for epoch in state.history)
    for diverged in state.divergences:
        kept = json.loads((alone.work / DIVERGED / f"step-{diverged.step:09d}.json").read_text())
        assert BROKEN_KEY in kept["keys"]
        assert (len(kept["keys"]), kept["step"], kept["loss"]) == (32, diverged.step, "nan")
        assert (
            alone.work / DIVERGED / f"step-{diverged.step:09d}.tfrecord"
        ).stat().st_size > 32 * 100
    assert len(state.warnings) == 2
    assert "The batch was skipped." in state.warnings[0]
    assert len(messages(alone, "diverged")) == 4  # it is searched for and found twice

    together = make_broken("together", train__workers=2, **skip)
    other = train(together, host_pool)
    assert [d.step for d in other.divergences] == [d.step for d in state.divergences]
    same = zip(read_arrays(alone.work / TRAINED), read_arrays(together.work / TRAINED), strict=True)
    assert max(float(np.abs(a - b).max()) for a, b in same) <= 1e-5


@pytest.mark.training
def test_a_worker_that_is_killed_while_the_batch_is_looked_for_changes_nothing(
    make_broken, host_pool
):
    skip = {"train__on_divergence__action": "skip_batch"}
    calm = make_broken("calm", **ALONE, **skip | {"train__seed": 5})
    steps = [d.step for d in train(calm, host_pool).divergences]
    killed = make_broken("killed", train__workers=2, **skip | {"train__seed": 5})
    done = []

    def kill_at_the_first(moment):
        killed.progress.forward(moment)
        if moment.phase == "diverged" and not done:
            done.append(moment)
            os.kill(next(pid for pid in _workers(killed)), signal.SIGKILL)

    state = train(killed, host_pool, on_event=kill_at_the_first)
    assert [d.step for d in state.divergences] == steps
    same = zip(read_arrays(calm.work / TRAINED), read_arrays(killed.work / TRAINED), strict=True)
    assert max(float(np.abs(a - b).max()) for a, b in same) <= 1e-5


def _workers(job) -> list[int]:
    """Returns the pids of processes that write to a worker's log of this job."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "fd" / "1").startswith(
                str(job.attempt.folder / "worker")
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.training
def test_without_an_action_it_stops_and_says_where_the_batch_is(make_broken, host_pool):
    job = make_broken("stop", **ALONE)
    with pytest.raises(
        ConfigError, match=r"diverged at step \d+ \(loss nan.*Its batch is in .*step-\d+.tfrecord"
    ) as error:
        train(job, host_pool)
    assert "train.on_divergence" in str(error.value)
    [kept] = (job.work / DIVERGED).glob("*.json")
    assert BROKEN_KEY in json.loads(kept.read_text())["keys"]


@pytest.mark.training
def test_a_budget_ends_it(make_broken, host_pool):
    job = make_broken(
        "budget",
        **ALONE,
        train__on_divergence__action="skip_batch",
        train__on_divergence__max_times=1,
    )
    with pytest.raises(
        ConfigError, match=r"one divergence more than train.on_divergence.max_times \(1\) allows"
    ):
        train(job, host_pool)


@pytest.mark.training
def test_a_loss_that_explodes_lowers_the_learning_rate_until_it_does_not(make_job, host_pool):
    job = make_job(
        "rate",
        **QUICK,
        **ALONE,
        train__optimizer={"name": "sgd", "learning_rate": 10.0, "momentum": 0.9},
        train__on_divergence={
            "action": "lower_learning_rate",
            "max_times": 20,
            "max_loss": 50.0,
        },
    )
    state = train(job, host_pool)
    assert 1 <= len(state.divergences) <= 20
    assert state.learning_rate == pytest.approx(10 * 0.5 ** len(state.divergences))
    assert all(epoch.metrics["loss"] < 50 for epoch in state.history)
