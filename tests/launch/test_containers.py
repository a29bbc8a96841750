"""A gang inside the container of its train job, on a real Docker daemon.

It shares nothing with this machine but a bucket.
"""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from launch.placed_training import PlacedTraining
from launch.running import INTERVAL

from pipeline_ops.contract.gang_protocol import FORK_SERVER_MODULE


@pytest.fixture
def training(engine, image, bucket, dataset, tmp_path):
    hosts = {"launcher": "container", "image": image("jobs"), "pull": "never"}
    hosts |= {"daemon": engine.address}
    training = PlacedTraining(tmp_path, f"{bucket}/root", dataset, None, hosts)
    yield training
    training.remove()


def find_worker(pids: list[int]) -> int:
    """A process that a fork server has forked."""
    processes = [psutil.Process(pid) for pid in pids]
    servers = {process.pid for process in processes if FORK_SERVER_MODULE in process.cmdline()}
    return next(process.pid for process in processes if process.ppid() in servers)


@pytest.mark.containers
@pytest.mark.timeout(3600)
def test_a_gang_survives_its_chief_in_the_container_of_its_job(training, engine):
    training.wait_until(training.has_checkpoint)
    [container] = engine.docker("ps", "--format", "{{.Names}}").split()
    os.kill(find_worker(engine.find_pids(container)), signal.SIGKILL)
    training.wait_until(lambda: training.read_messages("restart"))
    figures = training.end()
    assert (figures.workers, figures.restarts) == (2, 1)
    assert training.read_steps("restored")[-1] >= INTERVAL
