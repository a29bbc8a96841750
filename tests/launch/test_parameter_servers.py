"""A gang with parameter servers, in which processes of each role die or hang."""

from __future__ import annotations

import os
import signal

import pytest
from launch.running import QUICK, RunningJob, assert_same, config_with_hosts

from pipeline_ops.contracts.errors import ExitCode

SERVERS = QUICK | {"train__strategy": "parameter_server", "train__workers": 1, "train__parameter_servers": 2, "train__hosts": "lab",
                   "train__heartbeat_timeout_seconds": 5}
ROLES = ["chief", "worker 0", "ps 1"]


@pytest.fixture(scope="module")
def undisturbed(dataset, make_job_in, tmp_path_factory):
    folder = tmp_path_factory.mktemp("servers")
    job = RunningJob(make_job_in(folder, dataset, config_with_hosts(folder, {"launcher": "local"}))("attempt", **SERVERS))
    assert job.end() == ExitCode.SUCCESS, job.job.attempt.log.read_text()
    return job


@pytest.fixture
def start(dataset, make_job_in, tmp_path):
    started = []

    def start_job(**overrides) -> RunningJob:
        make = make_job_in(tmp_path, dataset, config_with_hosts(tmp_path, {"launcher": "local"}))
        started.append(RunningJob(make("attempt", **(SERVERS | overrides))))
        return started[-1]

    yield start_job
    for job in started:
        job.put_an_end_to_it()


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)], ids=lambda number: number.name)
@pytest.mark.parametrize("name", ROLES)
def test_a_lost_process_of_any_role_costs_a_restart_and_changes_nothing(start, undisturbed, name, number):
    job = start()
    job.wait_for_step(20)
    os.kill(job.worker(name), number)
    assert job.end() == ExitCode.SUCCESS, job.message()
    [message] = job.messages("restart")
    assert name in message
    [restored] = job.steps("restored", "chief")
    assert restored >= 20 - SERVERS["train__checkpoint_every_steps"], "no more than a checkpoint's interval is done twice"
    assert_same(job, undisturbed)
    assert job.survivors() == []


@pytest.mark.slow
def test_several_workers_share_the_steps(start):
    job = start(train__workers=2)
    assert job.end() == ExitCode.SUCCESS, job.message()
    last = job.figures().history[-1]
    assert last.step == 132, "each step is taken once, whoever takes it"
    assert last.metrics["validation_accuracy"] > 0.8
