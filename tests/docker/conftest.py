"""The images, built once by a Docker daemon of the tests' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from docker_daemon import ROOT, Docker, docker_daemon, why_not

TARGETS = {
    "airflow": ("airflow.Dockerfile", None),
    "jobs": ("jobs.Dockerfile", "jobs"),
    "host": ("jobs.Dockerfile", "host"),
    "serving": ("serving.Dockerfile", None),
    "beam-worker": ("beam-worker.Dockerfile", None),
}


@pytest.fixture(scope="session")
def docker() -> Iterator[Docker]:
    if reason := why_not():
        pytest.skip(reason)
    with docker_daemon() as client:
        yield client


@pytest.fixture(scope="session")
def image(docker) -> Callable[[str], str]:
    """Builds one of the project's images when it is first asked for. Returns its tag."""

    @cache
    def build(name: str) -> str:
        file, target = TARGETS[name]
        options = ["--target", target] if target else []
        docker.build(f"trainyard-{name}", ROOT / "docker" / file, ROOT, *options)
        return f"trainyard-{name}"

    return build
