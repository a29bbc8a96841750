"""The cluster of docker/compose.yaml, started as in docs/docker.md, and what may die in it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_daemon import ROOT, Docker, copy_repository, wait_until_healthy

from pipeline_ops.cli.local_airflow.ports import find_free_port

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]

PUBLIC_IMAGES = {"postgres": "POSTGRES_IMAGE", "redis": "REDIS_IMAGE", "s3": "S3_IMAGE"}
TRAINING = re.compile(r"train +train \d+/")
CHECKPOINT = re.compile(r"train +train \d{3,}/")
"""There are 44 steps in an epoch, and a checkpoint after each."""


class Cluster:
    """A cluster of a copy of the repository.

    Args:
      environment: the settings of the cluster, with which `make` is called.
    """

    def __init__(self, folder: Path, docker: Docker, environment: dict[str, str]):
        self.docker, self.folder = docker, folder
        self._environment = {**docker.environment, **environment}

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

    def wait_for(self, pattern: re.Pattern[str], seconds: float = 600) -> None:
        deadline = time.monotonic() + seconds
        while not pattern.search(self.output):
            assert self._process.poll() is None and time.monotonic() < deadline, self.output
            time.sleep(0.2)

    def finish(self) -> str:
        """Waits for the end of a run that succeeds. Returns its output."""
        status = self._process.wait()
        self._reader.join()
        assert status == 0, self.output
        return self.output


@pytest.fixture(scope="module")
def cluster(docker, tmp_path_factory) -> Iterator[Cluster]:
    folder = copy_repository(tmp_path_factory.mktemp("clone"))
    environment = {
        "COMPOSE_PROJECT_NAME": "trainyard-test",
        "AIRFLOW_PORT": str(find_free_port()),
        **_provide_images(docker, tmp_path_factory.mktemp("stand-ins")),
    }
    cluster = Cluster(folder, docker, environment)
    started = cluster.make("up")
    assert started.returncode == 0, started.stdout[-8000:]
    yield cluster
    stopped = cluster.make("down")
    assert stopped.returncode == 0, stopped.stdout
    assert docker("ps", "-aq") == "" and docker("volume", "ls", "-q") == ""
    assert not _find_secrets(folder).exists()


def _find_secrets(folder: Path) -> Path:
    return folder / "docker" / ".secrets" / "trainyard-test"


def _provide_images(docker: Docker, context: Path) -> dict[str, str]:
    """Builds stand-ins for the public images."""
    for file in (ROOT / "tests" / "docker").iterdir():
        if file.is_file():
            shutil.copy(file, context)
    shutil.copy(ROOT / "tests" / "support" / "object_servers" / "moto_process.py", context)
    images = {}
    for name, variable in PUBLIC_IMAGES.items():
        images[variable] = f"trainyard-test/{name}"
        docker.build(images[variable], context / "StandIns.Dockerfile", context, "--target", name)
    return images


def test_a_run_on_the_cluster_publishes_a_model(cluster):
    output = cluster.start_run().finish()
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
        wait_until_healthy(cluster.docker, container)
    finally:
        cluster.docker("kill", container)


def test_a_training_goes_on_while_the_airflow_worker_is_dead(cluster):
    run = cluster.start_run("--set", "train.epochs=21")
    run.wait_for(TRAINING)
    cluster.crash("worker")
    output = run.finish()
    assert "resumes from step" not in output


def test_a_training_continues_from_its_checkpoint_when_a_host_is_dead(cluster):
    run = cluster.start_run("--set", "train.epochs=60")
    run.wait_for(CHECKPOINT)
    cluster.crash("host-2")
    assert "resumes from step" in run.finish()


def test_a_second_run_finds_everything_made(cluster):
    output = cluster.start_run().finish()
    assert len(re.findall(r"cached", output)) >= 4
