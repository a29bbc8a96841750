"""Runners beyond the embedded one.
What can be run on any machine is Beam's own Python job server."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pipeline_ops.config.preprocess import BeamRunner
from pipeline_ops.errors import ConfigError, ExitCode


@pytest.fixture(scope="module")
def job_server() -> Iterator[str]:
    """The endpoint of a job server in a process of its own."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    argv = [
        sys.executable,
        "-m",
        "apache_beam.runners.portability.local_job_service_main",
        "--port",
        str(port),
    ]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield f"localhost:{port}"
    process.kill()
    process.wait()


def is_listening(endpoint: str) -> bool:
    host, port = endpoint.split(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


def test_not_a_byte_depends_on_whether_the_runner_is_embedded_or_portable(
    animals, job_server, wait_for
):
    wait_for(lambda: is_listening(job_server))
    animals.add("cat/broken.png", b"no image")
    embedded = animals.run(rejects={"max_count": 1})
    wanted = embedded.contents
    shutil.rmtree(embedded.artifact)
    options = {
        "job_endpoint": job_server,
        "environment_type": "LOOPBACK",
        "sdk_worker_parallelism": 2,
    }
    portable = animals.run(
        rejects={"max_count": 1},
        runner={"name": "portable", "shared_disk": True, "options": options},
    )
    assert portable.exit_code is ExitCode.SUCCESS, portable.message
    assert portable.artifact == embedded.artifact
    assert portable.contents == wanted


def test_an_endpoint_where_nobody_listens_is_a_reason_to_retry(animals):
    options = {
        "job_endpoint": "localhost:1",
        "environment_type": "LOOPBACK",
        "job_server_timeout": 2,
    }
    outcome = animals.run(runner={"name": "portable", "shared_disk": True, "options": options})
    assert outcome.exit_code is ExitCode.RETRY
    assert "the runner portable failed" in outcome.message
    assert not outcome.artifact.exists()


def test_an_option_that_beam_does_not_take_is_the_configs_fault(animals):
    outcome = animals.run(
        runner={
            "name": "portable",
            "shared_disk": True,
            "options": {"environment_type": "LOOPBACK", "job_server_timeout": "soon"},
        }
    )
    assert outcome.exit_code is ExitCode.CONFIG
    assert "preprocess.runner.options: Beam does not accept" in outcome.message


@pytest.mark.parametrize(
    ("runner", "rule"),
    [
        (
            {"options": {"parallelism": 2}},
            "options (parallelism) are for the other runners. The runner embedded has workers",
        ),
        (
            {"name": "flink", "workers": 2},
            "workers is for the runner embedded, and flink has options",
        ),
        (
            {"name": "spark", "shared_disk": True, "options": {"runner": "FlinkRunner"}},
            "the option runner is not allowed",
        ),
        (
            {"name": "flink"},
            "preprocess.runner: the workers of flink write shards into the storage",
        ),
        ({"shared_disk": True}, "shared_disk is for the other runners"),
    ],
)
def test_what_does_not_belong_together_is_said(animals, runner, rule):
    with pytest.raises(ConfigError, match=rule.replace("(", r"\(").replace(")", r"\)")):
        animals.plan(runner=runner)


@pytest.mark.parametrize("name", ["flink", "spark", "portable"])
def test_every_runner_is_one_that_beam_has(name):
    from beam_jobs.graph import create_engine

    engine, options = create_engine(
        BeamRunner(name=name, shared_disk=True, options={"environment_type": "LOOPBACK"})
    )
    assert type(engine).__name__.lower() == f"{name}runner"
    assert options.get_all_options(drop_default=True)["environment_type"] == "LOOPBACK"
