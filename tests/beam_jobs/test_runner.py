"""Runners beyond the embedded one.
What can be run on any machine is Beam's own Python job server."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from apache_beam.runners.portability.portable_runner import PortableRunner

from beam_jobs.engine_job import Flink, create_pipeline, find_reason
from pipeline_ops.cli.commands.doctor import check_engine
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.preprocess import BeamRunner
from pipeline_ops.errors import ConfigError, ExitCode, MachineError
from pipeline_ops.system.host import Finding

LOCAL = {"name": "portable", "endpoint": "localhost:1", "shared_disk": True}


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
    options = {"environment_type": "LOOPBACK", "sdk_worker_parallelism": 2}
    portable = animals.run(
        rejects={"max_count": 1}, runner=LOCAL | {"endpoint": job_server, "options": options}
    )
    assert portable.exit_code is ExitCode.SUCCESS, portable.message
    assert portable.artifact == embedded.artifact
    assert portable.contents == wanted


def test_an_endpoint_where_nobody_listens_is_named_at_once(animals):
    outcome = animals.run(runner=LOCAL)
    assert outcome.exit_code is ExitCode.RETRY
    assert (
        "preprocess.runner.endpoint: Beam's job server does not answer at localhost:1: "
        in outcome.message
    )
    assert not outcome.artifact.exists()


def test_a_rest_address_where_nobody_listens_is_named_at_once(animals, job_server, wait_for):
    wait_for(lambda: is_listening(job_server))
    flink = {"name": "flink", "endpoint": job_server, "rest_address": "http://localhost:1"}
    outcome = animals.run(runner=LOCAL | flink)
    assert outcome.exit_code is ExitCode.RETRY
    assert "rest_address: Flink's REST API does not answer at http://localhost:1" in outcome.message


def test_the_doctor_asks_the_engine_before_a_run(animals, job_server, wait_for):
    wait_for(lambda: is_listening(job_server))

    def ask(**runner) -> list[Finding]:
        values = {"preprocess.runner": LOCAL | runner}
        return list(check_engine(load_config(animals.config_file, values)))

    [finding] = ask()
    assert "does not answer at localhost:1" in finding.problem and "Start it" in finding.cure
    server, workers = ask(endpoint=job_server, options={"environment_type": "LOOPBACK"})
    assert (server.problem, server.check) == ("", f"portable at {job_server}")
    assert (workers.problem, workers.check) == ("", "the workers of portable at localhost:50000")
    _, workers = ask(endpoint=job_server)
    assert ":50000: Failed to connect" in workers.problem
    [finding] = ask(name="flink", endpoint=job_server, rest_address=f"http://{job_server}")
    assert "Flink's REST API does not answer" in finding.problem
    assert list(check_engine(load_config(animals.config_file))) == []


@pytest.fixture
def flink() -> Iterator[Flink]:
    """Flink's REST API with one answer, `flink.answer`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(found.answer)

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = Flink(f"http://127.0.0.1:{server.server_port}")
        yield found
        server.shutdown()


def test_a_job_that_waits_for_slots_is_told_so(flink):
    flink.answer = b'{"taskmanagers": 2, "slots-total": 4, "slots-available": 1}'
    assert flink.check_slots(1) == ""
    message = flink.check_slots(2)
    assert f"Flink at {flink.address} has 4 slots, 1 of them free. The job waits for 2." in message
    assert "Start TaskManagers, or lower preprocess.runner.options.parallelism" in message


@pytest.mark.parametrize("answer", [b"[]", b"<html>", b'{"jobs": [{"jid": 1}]}', b"{}"])
def test_an_answer_that_is_not_flinks_names_the_address(flink, answer):
    flink.answer = answer
    with pytest.raises(MachineError, match=f"rest_address: .* {flink.address}") as raised:
        flink.find_jobs("trainyard")
    assert raised.value.cure == "Start Flink, or correct the address."


def test_an_option_that_beam_does_not_take_is_the_configs_fault(animals, job_server, wait_for):
    wait_for(lambda: is_listening(job_server))
    options = {"environment_type": "LOOPBACK", "job_server_timeout": "soon"}
    outcome = animals.run(runner=LOCAL | {"endpoint": job_server, "options": options})
    assert outcome.exit_code is ExitCode.CONFIG
    assert "preprocess.runner.options: Beam does not accept" in outcome.message


@pytest.mark.parametrize(
    ("runner", "rule"),
    [
        (
            {"options": {"parallelism": 2}, "endpoint": "a:1"},
            "endpoint, options: for the other runners. embedded has workers",
        ),
        (LOCAL | {"workers": 2}, "workers is for the runner embedded, and portable has"),
        ({"shared_disk": True}, "shared_disk: for the other runners"),
        ({"name": "spark", "shared_disk": True}, "spark needs endpoint, the address of Beam's job"),
        (LOCAL | {"name": "flink"}, "flink needs rest_address, as in http://jobmanager:8081"),
        (
            LOCAL | {"options": {"runner": "FlinkRunner", "job_endpoint": "a:1"}},
            "options that have a key of their own: job_endpoint (use endpoint), runner (use name)",
        ),
        (LOCAL | {"endpoint": "http://jobs:8099"}, "preprocess.runner.endpoint: "),
        (LOCAL | {"rest_address": "http://a@b:80"}, "preprocess.runner.rest_address: "),
    ],
)
def test_what_does_not_belong_together_is_said(animals, runner, rule):
    with pytest.raises(ConfigError, match=re.escape(rule)):
        animals.plan(runner=runner)


def test_beam_gets_the_keys_and_the_options():
    runner = BeamRunner(
        name="flink",
        endpoint="jobs:8099",
        rest_address="http://flink:8081",
        worker_pool="pool:1",
        options={"job_server_timeout": 7, "parallelism": 3},
    )
    pipeline = create_pipeline(runner, "trainyard-a")
    assert isinstance(pipeline.runner, PortableRunner)
    given = pipeline.options.get_all_options(drop_default=True)
    assert given["job_name"] == "trainyard-a" and given["job_endpoint"] == "jobs:8099"
    assert given["environment_type"] == "EXTERNAL" and given["environment_config"] == "pool:1"
    assert given["job_server_timeout"] == 7, "an option wins"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no reason given"),
        ("one line", "one line"),
        (
            "java.lang.RuntimeException: Traceback (most recent call last):\n"
            "pipeline_ops.storage.store_path.StoreAway: s3://bucket: refused\n",
            "pipeline_ops.storage.store_path.StoreAway: s3://bucket: refused",
        ),
        (
            "java.lang.RuntimeException: Error received from SDK harness for instruction 4: "
            'Traceback (most recent call last):\n  File "a.py", line 3, in b\n'
            "ModuleNotFoundError: No module named 'own'\n\n"
            "During handling of the above exception, another exception occurred:\n"
            "pipeline_ops.errors.MachineError: the store is away [while running 'Build shards']\n"
            "\tat org.apache.beam.Some.thing(Some.java:1)\n",
            "pipeline_ops.errors.MachineError: the store is away [while running 'Build shards']",
        ),
    ],
)
def test_the_reason_of_an_engine_is_its_last_error_in_python(text, reason):
    assert find_reason(text) == reason
