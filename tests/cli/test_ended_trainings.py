"""A person or a time limit ends a training in a real Airflow, also where programs are dead."""

from __future__ import annotations

import signal
import time

import pytest
from cli.digits_airflow import Airflow
from cli.training_ends import ENDED_SECONDS, PEOPLE, act, bring_to, table
from processes import wait_until

from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.request import read_status
from pipeline_ops.contract.task_record import read_record

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]


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
    run.wait_for_end(attempt, ENDED_SECONDS)
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
    run.wait_for_end(attempt, ENDED_SECONDS)


@table(
    ("deferred", "task failed", "triggerer"),
    ("deferred", "clear", "triggerer"),
    ("running", "task failed", "worker"),
    ("running", "clear", "worker"),
    ("deferred", "task failed", "scheduler triggerer worker"),
    ("running", "task failed", "scheduler triggerer worker"),
)
def test_a_training_ends_though_programs_are_dead(airflow, training, when, way, dead):
    run = training()
    attempt = bring_to(run, when)
    airflow.kill(*{airflow.worker if name == "worker" else name for name in dead.split()})
    act(airflow, run, way)
    run.wait_for_end(attempt, ENDED_SECONDS)


@table(("running", "task failed"), ("running", "task success"))
def test_a_training_ends_though_its_worker_hangs_and_is_killed_before_it_has_heard_of_it(
    airflow, training, when, way
):
    """Happens on a machine so busy that the task is killed before its `on_kill` is done."""
    run = training()
    attempt = bring_to(run, when)
    airflow.send(signal.SIGSTOP, airflow.worker)
    act(airflow, run, way)
    run.wait_for_end(attempt, ENDED_SECONDS)
    airflow.kill(airflow.worker)


@table(("deferred", "task failed"), ("deferred", "clear"))
def test_a_training_ends_though_the_triggerer_has_not_begun_with_it(airflow, training, when, way):
    """The triggerer hangs while the task defers. It never starts the trigger of an ended task."""
    run = training()
    attempt = bring_to(run, "running")
    airflow.send(signal.SIGSTOP, "triggerer")
    run.wait_for(when)
    act(airflow, run, way)
    run.wait_for_end(attempt, ENDED_SECONDS)
    airflow.send(signal.SIGCONT, "triggerer")


@table()
def test_a_training_that_is_not_done_in_time_ends_with_every_process(airflow, training):
    run = training(author={"train.timeout_seconds": 15})
    attempt = run.wait_for_job()
    run.wait_for_end(attempt, 15 + ENDED_SECONDS)
    assert read_status(attempt).message == "not done after timeout_seconds (15)"


@table()
def test_a_person_who_ends_the_beam_job_ends_every_process_of_it(airflow, training):
    run = training(task="preprocess", author={"preprocess.split.seed": int(time.time()) + 1})
    attempt = run.wait_for_job()
    answer = airflow.call("PATCH", f"{run.path}/taskInstances/preprocess", {"new_state": "failed"})
    assert answer.is_success, answer.text
    run.wait_for_end(attempt, ENDED_SECONDS)
    assert read_status(attempt) is None or not read_status(attempt).manifest
