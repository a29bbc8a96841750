"""Hosts over real ssh: they train together, and whatever happens to one of them costs seconds and never the run."""

from __future__ import annotations

import os
import shutil

import pytest
from launch.network import Network, why_not
from launch.running import QUICK, RunningJob, assert_same

from pipeline_ops.contracts.errors import ExitCode

if reason := why_not():
    pytest.skip(f"no hosts to train on: {reason}", allow_module_level=True)

PATIENT = {"train__heartbeat_timeout_seconds": 6, "train__start_timeout_seconds": 90}


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    network = Network(tmp_path_factory.mktemp("network"), 3)
    network.up()
    yield network
    network.down()


@pytest.fixture
def start(network, dataset, make_job_in, tmp_path):
    """Starts jobs on the first hosts of the network."""
    started = []

    def start_job(hosts: int = 2, name: str = "attempt", lab: dict | None = None, **overrides) -> RunningJob:
        from conftest import DIGITS

        shutil.copy(DIGITS, tmp_path / "digits.yaml")
        network.hosts_file(tmp_path, count=hosts, **(lab or {}))
        make = make_job_in(tmp_path, dataset, tmp_path / "digits.yaml")
        started.append(RunningJob(make(name, **(QUICK | PATIENT | {"train__hosts": "lab", "train__workers": hosts} | overrides))))
        return started[-1]

    yield start_job
    for host in network.hosts:
        network.mend(host)
    for job in started:
        job.put_an_end_to_it()


@pytest.fixture(scope="module")
def undisturbed(dataset, make_job_in, tmp_path_factory):
    """A run on this machine alone that nobody disturbed."""
    job = RunningJob(make_job_in(tmp_path_factory.mktemp("undisturbed"), dataset)("attempt", **QUICK))
    assert job.end() == ExitCode.SUCCESS, job.job.attempt.log.read_text()
    return job


def namespace_of(pid: int) -> int:
    return os.stat(f"/proc/{pid}/ns/net").st_ino


def test_two_hosts_train_what_one_machine_trains(start, undisturbed):
    job = start(hosts=2)
    job.wait_for_step(5)
    assert len({namespace_of(job.worker(f"worker {n}")) for n in (0, 1)} | {namespace_of(os.getpid())}) == 3, "each is in a network of its own"
    assert job.end() == ExitCode.SUCCESS, job.message()
    assert job.figures().workers == 2
    assert_same(job, undisturbed)
    assert job.survivors() == []
