"""The fate of a training when Airflow dies, and when a person ends it.

The programs of a real Airflow are killed by signal 9. There are two executors, each with one
Airflow for all rows: LocalExecutor on SQLite, and CeleryExecutor on PostgreSQL and Redis.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from cli import services
from cli.digits_airflow import Airflow, Run, make_pipeline
from cli.training_ends import PEOPLE, act, bring_to, table
from processes import is_running, read_command_line, wait_until

from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.jobs.request import read_status
from pipeline_ops.jobs.task_record import read_record

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]

_ENDED_SECONDS = 60.0
"""The end takes 1 to 4 seconds on an idle machine. A job that is not ended trains for an hour."""


needs_another_host = pytest.mark.skipif(
    os.geteuid() != 0,
    reason="only root can give this machine another name for one of its processes",
)


@pytest.fixture(scope="module")
def airflow(request, tmp_path_factory) -> Iterator[Airflow]:
    """An Airflow with a data set that exists already."""
    if request.param == "celery" and (reason := services.why_not()):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp(f"durable-{request.param}")
    make_pipeline(folder)
    # Not below Airflow's folder: its end kills all processes there.
    servers = tmp_path_factory.mktemp("servers") / "both"
    with (
        services.celery_settings(servers)
        if request.param == "celery"
        else contextlib.nullcontext({}) as executor
    ):
        airflow = Airflow(folder, os.environ, executor)
        try:
            airflow.begin()
            yield airflow
        finally:
            airflow.end()


@pytest.fixture
def training(airflow):
    """Starts a run with a long training. After the test, nothing of it may be left."""
    runs = []

    def start(
        epochs: int = 5000, task: str = "train", author: Mapping[str, Any] | None = None, **conf
    ) -> Run:
        seed = time.time_ns() % 2**31  # for a training that no other row has made
        conf = {"train__epochs": epochs, "train__seed": seed} | conf
        runs.append(airflow.trigger(task, author, **conf))
        return runs[-1]

    yield start
    airflow.restart(*airflow.commands)
    for run in runs:
        assert airflow.call("PATCH", run.path, {"state": "failed"}).status_code in (
            200,
            404,
        )  # where it was deleted
        wait_until(lambda run=run: not run.processes(), _ENDED_SECONDS)


def check_nothing_is_half_published(airflow: Airflow) -> None:
    published = airflow.layout.root.local / "models" / "digits"
    assert not list(published.glob(".*")) if published.exists() else True
    assert all(
        read_manifest(path / "manifest.json")
        for path in airflow.layout.artifacts("train").local.glob("[!.]*")
    )


@table(*((when, way) for when in ("deferred", "running") for way in PEOPLE))
def test_a_person_who_ends_a_training_ends_every_process_of_it(airflow, training, when, way):
    run = training()
    attempt = bring_to(run, when)
    if when == "deferred":
        assert len(run.processes()) >= 4  # the launcher, the fork server, two workers
        assert airflow.call("DELETE", run.path).status_code == 409, (
            "a run that is running can't be deleted"
        )
    act(airflow, run, way)
    run.wait_for_end(attempt, _ENDED_SECONDS)
    check_nothing_is_half_published(airflow)
    if way in ("clear", "run clear"):
        wait_until(lambda: run.attempts[-1] != attempt and run.processes(run.attempts[-1]), 180)
    if way == "task success":  # there is no model to evaluate, and the record has the reason
        run.wait_for("failed", "evaluate")
        assert (
            "train has left no manifest"
            in read_record(airflow.layout.task_record(run.run_id, "evaluate")).message
        )


@table(("deferred",), ("running",))
def test_a_run_that_is_deleted_at_once_leaves_nothing_that_runs(airflow, training, when):
    run = training()
    attempt = bring_to(run, when)
    act(airflow, run, "run failed")
    assert airflow.call("DELETE", run.path).is_success
    run.wait_for_end(attempt, _ENDED_SECONDS)


@table(("deferred", "task failed"), ("deferred", "clear"))
def test_a_training_ends_though_the_triggerer_is_dead(airflow, training, when, way):
    run = training()
    attempt = bring_to(run, when)
    airflow.kill("triggerer")
    act(airflow, run, way)
    run.wait_for_end(attempt, _ENDED_SECONDS)


@table(("running", "task failed"), ("running", "clear"))
def test_a_training_ends_though_its_worker_is_dead(airflow, training, when, way):
    run = training()
    attempt = bring_to(run, when)
    airflow.kill(airflow.worker)
    act(airflow, run, way)
    run.wait_for_end(attempt, _ENDED_SECONDS)


@table(("deferred", "task failed"), ("running", "task failed"))
def test_a_training_ends_though_scheduler_triggerer_and_worker_are_dead(
    airflow, training, when, way
):
    run = training()
    attempt = bring_to(run, when)
    airflow.kill(*{"scheduler", "triggerer", airflow.worker})
    act(airflow, run, way)
    run.wait_for_end(attempt, _ENDED_SECONDS)


@table(("running", "task failed"), ("running", "task success"))
def test_a_training_ends_though_its_worker_hangs_and_is_killed_before_it_has_heard_of_it(
    airflow, training, when, way
):
    """Happens on a machine so busy that the task is killed before its `on_kill` is done."""
    run = training()
    attempt = bring_to(run, when)
    airflow.send(signal.SIGSTOP, airflow.worker)
    act(airflow, run, way)
    run.wait_for_end(attempt, _ENDED_SECONDS)
    airflow.kill(airflow.worker)


@table(("deferred", "task failed"), ("deferred", "clear"))
def test_a_training_ends_though_the_triggerer_has_not_begun_with_it(airflow, training, when, way):
    """The triggerer hangs while the task defers. It never starts the trigger of an ended task."""
    run = training()
    attempt = bring_to(run, "running")
    airflow.send(signal.SIGSTOP, "triggerer")
    run.wait_for(when)
    act(airflow, run, way)
    run.wait_for_end(attempt, _ENDED_SECONDS)
    airflow.send(signal.SIGCONT, "triggerer")


@table()
def test_a_training_that_is_not_done_in_time_ends_with_every_process(airflow, training):
    run = training(author={"train.timeout_seconds": 15})
    attempt = run.wait_for_job()
    run.wait_for_end(attempt, 15 + _ENDED_SECONDS)
    assert read_status(attempt).message == "not done after timeout_seconds (15)"


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
        run.wait_for_end(attempt, _ENDED_SECONDS)


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


@table()
def test_a_person_who_ends_the_beam_job_ends_every_process_of_it(airflow, training):
    run = training(task="preprocess", author={"preprocess.split.seed": int(time.time()) + 1})
    attempt = run.wait_for_job()
    answer = airflow.call("PATCH", f"{run.path}/taskInstances/preprocess", {"new_state": "failed"})
    assert answer.is_success, answer.text
    run.wait_for_end(attempt, _ENDED_SECONDS)
    assert read_status(attempt) is None or not read_status(attempt).manifest
