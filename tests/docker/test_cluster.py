"""The cluster of docker/compose.yaml, started as in docs/docker.md, and what may die in it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import Docker

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]

STAND_INS = "trainyard-test/stand-ins"
"""One image in the place of the public images of PostgreSQL, Redis and an S3 server."""
SETTINGS = {
    "COMPOSE_PROJECT_NAME": "trainyard-test",
    **dict.fromkeys(("POSTGRES_IMAGE", "REDIS_IMAGE", "S3_IMAGE"), STAND_INS),
}
STEP = re.compile(r"train +train (\d+)/")
EPOCH_STEPS = 44
"""There is a checkpoint after each epoch."""


class Cluster:
    """A cluster of a copy of the repository."""

    def __init__(self, folder: Path, docker: Docker):
        self.docker, self.folder = docker, folder
        self._environment = {**docker.environment, **SETTINGS}

    def make(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", *words],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def start_run(self, *settings: str) -> Run:
        return Run(
            subprocess.Popen(
                ["make", "up-run", f"ARGS={' '.join(settings)}"],
                cwd=self.folder,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )

    def crash(self, service: str) -> None:
        """Kills the first process of a container, as a lack of memory does. Docker restarts it."""
        label = f"label=com.docker.compose.service={service}"
        container = self.docker("ps", "-q", "--filter", label)
        pid = self.docker("inspect", "--format", "{{.State.Pid}}", container)
        os.kill(int(pid), signal.SIGKILL)


class Run:
    """A call of `make up-run`, whose output is read while it goes on."""

    def __init__(self, process: subprocess.Popen[str]):
        self._process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        self.lines.extend(iter(self._process.stdout.readline, ""))

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def wait_for_steps(self, num_steps: int, seconds: float = 600) -> None:
        """Waits until the training has made so many steps more."""
        target, deadline = self._read_step() + num_steps, time.monotonic() + seconds
        while self._read_step() < target:
            assert self._process.poll() is None and time.monotonic() < deadline, self.output
            time.sleep(0.2)

    def _read_step(self) -> int:
        return max(map(int, STEP.findall(self.output)), default=0)

    def finish(self) -> str:
        """Waits for the end of a run that succeeds. Returns its output."""
        status = self._process.wait()
        self._reader.join()
        assert status == 0, self.output
        return self.output


@pytest.fixture(scope="module")
def cluster(docker, image, sources) -> Iterator[Cluster]:
    for name in ("airflow", "host"):
        image(name)
    tests = sources / "tests"
    docker.build(STAND_INS, tests / "docker" / "StandIns.Dockerfile", tests)
    cluster = Cluster(sources, docker)
    started = cluster.make("up")
    assert started.returncode == 0, started.stdout[-8000:]
    yield cluster
    stopped = cluster.make("down")
    assert stopped.returncode == 0, stopped.stdout
    assert docker("ps", "-aq") == "" and docker("volume", "ls", "-q") == ""
    assert not _find_secrets(sources).exists()


def _find_secrets(folder: Path) -> Path:
    return folder / "docker" / ".secrets" / "trainyard-test"


def test_a_training_outlives_the_airflow_worker_and_resumes_without_a_host(cluster):
    """It goes on while the worker is dead, and continues from its checkpoint after a host's death.
    Then its model is published."""
    run = cluster.start_run("--set", "train.epochs=60")
    run.wait_for_steps(1)
    cluster.crash("worker")
    run.wait_for_steps(2 * EPOCH_STEPS)
    assert "resumes from step" not in run.output
    cluster.crash("host-2")
    output = run.finish()
    assert output.count("resumes from step") == 1, output
    assert "version 1 is in service" in output


def test_the_published_model_is_served(cluster, image):
    """By a container that gets the keys of the bucket as files."""
    secrets = _find_secrets(cluster.folder)
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    container = cluster.docker(
        *("run", "-d", "--rm", "--read-only", "--network=trainyard-test_default"),
        *(f"-v={secrets / name}:/run/secrets/{name}:ro" for name in names),
        *("-e=AWS_ENDPOINT_URL=http://s3:8333", "-e=AWS_REGION=us-east-1"),
        *(image("serving"), "digits", "--registry=s3://trainyard/root/models"),
    )
    try:
        cluster.docker.wait_until_healthy(container)
    finally:
        cluster.docker("kill", container)


def test_a_second_run_finds_everything_made(cluster):
    output = cluster.start_run("--set", "train.epochs=60").finish()
    assert len(re.findall(r"cached", output)) >= 4
