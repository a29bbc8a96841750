"""The same training goes on when the programs of a real Airflow are killed or stopped."""

from __future__ import annotations

import os
import time

import pytest
from cli.training_ends import ENDED_SECONDS, act, bring_to, table
from processes import is_running, read_command_line, wait_until

from pipeline_ops.contract.request import read_status

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]

needs_another_host = pytest.mark.skipif(
    os.geteuid() != 0,
    reason="only root can give this machine another name for one of its processes",
)


@table()
def test_the_same_gang_goes_on_when_scheduler_triggerer_and_all_of_airflow_are_killed(
    airflow, training
):
    run = training()
    attempt = bring_to(run, "deferred")
    gang = run.processes(attempt)
    for victims in (["scheduler"], ["triggerer"], [airflow.worker], list(airflow.commands)):
        airflow.kill(*victims)
        time.sleep(2)
        airflow.restart(*victims)
        assert all(map(is_running, gang)), f"the gang died with {victims}"
    run.wait_for("deferred")
    assert len(run.attempts) == 1
    assert run.task()["try_number"] == 1


@table(("deferred",), ("running",))
def test_a_training_goes_on_to_its_end_through_a_deployment(airflow, training, when):
    """The programs are stopped and started as a deployment does it."""
    run = training(epochs=150)
    attempt = bring_to(run, when)
    airflow.stop(*airflow.commands)
    if when == "deferred":
        assert run.processes(attempt) or read_status(attempt).manifest
    airflow.restart(*airflow.commands)
    run.wait_for("success", seconds=900)
    if when == "deferred":  # a running task that cannot reach Airflow may need another try
        assert len(run.attempts) == 1
        assert run.task()["try_number"] == 1
    wait_until(lambda: run.state == "success", 180)
    assert not run.processes()


@table()
def test_a_killed_worker_costs_a_try_and_the_next_one_finds_the_same_gang(airflow, training):
    run = training()
    attempt = bring_to(run, "running")
    [leader] = [
        process for process in run.processes(attempt) if "--request" in read_command_line(process)
    ]
    airflow.kill(airflow.worker)
    airflow.restart(airflow.worker)
    wait_until(
        lambda: run.task()["try_number"] == 2 and run.task()["state"] in ("running", "deferred"),
        180,
    )
    run.wait_for("deferred")
    assert len(run.attempts) == 1
    assert is_running(leader)


@needs_another_host
@table()
def test_a_try_on_another_host_follows_the_gang_of_a_host_that_is_lost(airflow, training):
    """A lost host looks like one that is only cut off, so no second gang may start."""
    run = training()
    attempt = bring_to(run, "running")
    with airflow.elsewhere(airflow.worker):
        wait_until(lambda: run.task()["try_number"] == 2, 180)
        run.wait_for("deferred")
        run.wait_for_steps()
        assert run.attempts == [attempt]
        act(airflow, run, "task failed")
        run.wait_for_end(attempt, ENDED_SECONDS)


@needs_another_host
@table()
def test_a_training_that_is_cleared_and_begins_anew_on_another_host_never_has_two_gangs(
    airflow, training
):
    run = training()
    attempt = bring_to(run, "deferred")
    gangs = []

    def only_the_next_trains() -> bool:
        gangs[:] = [
            attempt
            for attempt in run.attempts
            if any(
                "pipeline_ops.training" in " ".join(read_command_line(p))
                for p in run.processes(attempt)
            )
        ]
        assert len(gangs) <= 1, gangs
        return gangs not in ([], [attempt])

    with airflow.elsewhere(airflow.worker):
        act(airflow, run, "clear")
        wait_until(only_the_next_trains, 180)


@table()
def test_a_killed_worker_does_not_cost_the_data_set(airflow, training):
    """The next try finds the Beam job running, or finds its artifact."""
    run = training(task="preprocess", author={"preprocess.split.seed": int(time.time())})
    attempt = run.wait_for_job()
    airflow.kill(airflow.worker)
    airflow.restart(airflow.worker)
    run.wait_for("success")
    assert run.attempts == [attempt]
    assert read_status(attempt).manifest
