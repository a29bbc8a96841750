"""The statistics of requests that `trainyard serve` writes, from a real process."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence

import pytest
from export.http_server import BODY, post, running, statuses
from export.serve_process import NAMES, Server, as_b64, serve_command
from sandbox import Sandbox, copy_dataset

from pipeline_ops.contract.serving_statistics import ServingStatistics
from pipeline_ops.registry.serving_statistics import locate_statistics, read_statistics
from pipeline_ops.served.requests import ServerStatistics


@pytest.fixture(scope="module")
def sandbox(dataset, saved_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    sandbox = Sandbox(folder / "root", copy_dataset(dataset, folder / "data", NAMES), saved_models)
    sandbox.publish("good")
    return sandbox


def read(sandbox: Sandbox) -> ServingStatistics | None:
    return read_statistics(locate_statistics(str(sandbox.registry.location)), 1, time.time())


def serve(sandbox: Sandbox, end: signal.Signals, more: Sequence[str] = ()) -> str:
    """Asks a server for predictions twice, and ends it. Returns its messages."""
    command = serve_command("digits", sandbox.registry.location.parent, 0, *more)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            server = Server(process, sandbox, sandbox.dataset)
            server.wait_for_version(1)
            server.predict(instances=[as_b64(image) for image in server.encoded[:5]])
            server.predict(instances=[as_b64(image) for image in server.encoded[5:7]])
            process.send_signal(end)
            assert process.wait(60) == (-end if end == signal.SIGKILL else 0)
        finally:
            process.kill()
        return process.stderr.read()


def test_a_server_counts_its_requests_and_writes_them_when_it_ends(sandbox):
    messages = serve(sandbox, signal.SIGTERM)
    folder = sandbox.registry.location.parent / "digits.requests"
    assert f"statistics of requests, without images, go to {folder}" in messages
    assert "--no-statistics" in messages and "Traceback" not in messages
    found = read(sandbox)
    assert (found.num_images, found.num_measured, found.versions) == (7, 7, {1: 7})
    assert set(found.labels) <= set(NAMES) and sum(found.labels.values()) == 7
    counted = {name: histogram.count for name, histogram in found.features.items()}
    assert counted["image_width"] == counted["brightness"] == counted["score"] == 7
    assert found.properties["format"] == {"PNG": 7}
    written = b"".join(file.read_bytes() for file in folder.rglob("*.jsonl"))
    assert b"127.0.0.1" not in written and len(written) < 8192


@pytest.mark.models
@pytest.mark.parametrize(
    "end, more, obstacle, message",
    [
        (signal.SIGKILL, (), False, "go to"),
        (signal.SIGTERM, ("--no-statistics",), False, ""),
        (signal.SIGTERM, (), True, "statistics of requests are not written, and serving goes on"),
    ],
    ids=["killed", "off", "read_only"],
)
def test_a_killed_server_one_without_statistics_and_one_that_may_not_write_leave_none(
    sandbox, end, more, obstacle, message
):
    before = read(sandbox)
    folder = sandbox.registry.location.parent / "digits.requests"
    if obstacle:
        folder.mkdir(exist_ok=True)
        folder.rename(folder.with_name("aside"))
        folder.write_text("a file in the way")
    try:
        messages = serve(sandbox, end, more)
    finally:
        if obstacle:
            folder.unlink()
            folder.with_name("aside").rename(folder)
    assert (message in messages) and messages.count("serving goes on") == obstacle
    assert ("statistics" in messages) == bool(message) and read(sandbox) == before


def test_a_request_that_is_refused_is_not_counted(tmp_path):
    statistics = ServerStatistics(str(tmp_path / "digits"))
    with running(statistics=statistics) as server:
        bodies = [BODY, b"{", BODY.replace(b"instances", b"nothing"), BODY]
        answers = [server.send(post(body, b"Connection: close\r\n")) for body in bodies]
    statistics.close()
    assert [statuses(answer)[0] for answer in answers] == [200, 400, 400, 200]
    found = read_statistics(locate_statistics(str(tmp_path / "digits")), 1, time.time())
    assert (found.num_images, found.num_unreadable) == (2, 2)
    assert found.labels == {"a": 2}
