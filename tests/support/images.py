"""One Docker daemon for all tests of a process, and the images in it.

An image is built when a test first asks for it, so tests that share images belong into one process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from containers import ROOT, ContainerEngine, Docker, why_not
from object_servers.s3_server import S3Server

TARGETS = {
    "airflow": ("airflow.Dockerfile", None),
    "jobs": ("jobs.Dockerfile", "jobs"),
    "host": ("jobs.Dockerfile", "host"),
    "serving": ("serving.Dockerfile", None),
    "beam-worker": ("beam-worker.Dockerfile", None),
}


@pytest.fixture(scope="session")
def engine() -> Iterator[ContainerEngine]:
    if reason := why_not():
        pytest.skip(reason)
    with ContainerEngine() as engine:
        yield engine


@pytest.fixture(scope="session")
def docker(engine) -> Docker:
    return engine.docker


@pytest.fixture(scope="session")
def small_image(engine) -> str:
    """The id of the image `small`, which can run `place_job`."""
    return engine.provide_small_image()


@pytest.fixture(scope="session")
def sources(tmp_path_factory) -> Path:
    """What a clone would have, with the changes that are not committed yet.

    All images have the same code then, whatever changes meanwhile.
    """
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    folder = tmp_path_factory.mktemp("sources")
    for name in listed:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def image(docker, sources) -> Callable[[str], str]:
    """Builds one of the project's images when it is first asked for. Returns its tag."""
    # As compose.yaml has it, so that `make up` finds all layers in the cache.
    index = f"--build-arg=PIP_INDEX_URL={os.environ.get('PIP_INDEX_URL', '')}"

    @cache
    def build(name: str) -> str:
        file, target = TARGETS[name]
        options = [index, *(["--target", target] if target else [])]
        docker.build(f"trainyard-{name}", sources / "docker" / file, sources, *options)
        return f"trainyard-{name}"

    return build


@pytest.fixture(scope="session")
def _server(engine) -> Iterator[S3Server]:
    with S3Server(engine.gateway) as server:
        yield server


@pytest.fixture(scope="module")
def bucket(_server, request) -> Iterator[str]:
    """The URI of a bucket that containers of the engine reach, and this process with the variables
    that it has meanwhile."""
    name = request.module.__name__.rpartition(".")[2].replace("_", "-")
    _server.make_bucket(name)
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in _server.build_environment().items():
            patch.setenv(variable, value)
        yield f"s3://{name}"
