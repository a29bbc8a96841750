"""The images, built once by a Docker daemon of the tests' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from docker_daemon import Docker, copy_repository, docker_daemon, why_not

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
def sources(tmp_path_factory) -> Path:
    """The repository as it is now."""
    return copy_repository(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="session")
def image(docker, sources) -> Callable[[str], str]:
    """Builds one of the project's images when it is first asked for. Returns its tag."""

    @cache
    def build(name: str) -> str:
        file, target = TARGETS[name]
        options = ["--target", target] if target else []
        docker.build(f"trainyard-{name}", sources / "docker" / file, sources, *options)
        return f"trainyard-{name}"

    return build
