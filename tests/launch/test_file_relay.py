"""The files that the agent of another host sends to the launcher: logs, progress and status."""

from __future__ import annotations

import fcntl
import os
import time

import pytest

from pipeline_ops.contract.gang_protocol import Event
from pipeline_ops.launch.agent import FileRelay, LineReader, append_to_file
from pipeline_ops.places.place import collect_store_environment


class Relay:
    """Both sides, with a pipe between them."""

    def __init__(self, folder):
        self.far, self.near = folder / "far", folder / "near"
        self.far.mkdir()
        self.near.mkdir()
        read_end, self.write_end = os.pipe()
        self._reader = LineReader(read_end)
        os.set_blocking(read_end, False)
        self.agent = FileRelay(self.far, self.write_end)

    def write(self, name: str, text: str) -> None:
        with open(self.far / name, "a") as file:
            file.write(text)

    def receive(self) -> None:
        while True:
            try:
                lines = self._reader.read_lines()
            except BlockingIOError:
                return
            for event in map(Event.parse, lines or ()):
                append_to_file(self.near, event)

    def read(self, name: str) -> str:
        self.agent.send_new()
        self.receive()
        return (self.near / name).read_text() if (self.near / name).exists() else ""


@pytest.fixture
def relay(tmp_path):
    return Relay(tmp_path)


def test_whole_lines_arrive_and_a_half_one_waits_for_its_rest(relay):
    relay.write("worker-0.jsonl", "one\ntw")
    assert relay.read("worker-0.jsonl") == "one\n"
    relay.write("worker-0.jsonl", "o\n")
    assert relay.read("worker-0.jsonl") == "one\ntwo\n"


def test_only_files_of_the_gang_are_sent(relay):
    for name in ("request.json", "hosts.token", "worker-0.log", "candidate.status.json"):
        relay.write(name, "text\n")
    relay.agent.send_all()
    relay.receive()
    assert sorted(os.listdir(relay.near)) == ["candidate.status.json", "worker-0.log"]


@pytest.mark.parametrize("name", ["../worker-0.log", "/tmp/worker-0.log", "request.json", ""])
def test_a_host_can_not_write_elsewhere(tmp_path, name):
    folder = tmp_path / "attempt"
    folder.mkdir()
    append_to_file(folder, Event(event="appended", name=name, data=b"attack"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_an_earlier_agent_has_sent_is_not_sent_again(relay):
    relay.write("worker-0.log", "old\n")
    relay.agent = FileRelay(relay.far, relay.write_end)
    relay.write("worker-0.log", "new\n")
    assert relay.read("worker-0.log") == "new\n"


def test_the_status_of_the_next_process_replaces_the_one_before(relay):
    relay.write("worker-0.status.json", "failed\n")
    assert relay.read("worker-0.status.json") == "failed\n"
    relay.agent.remove("worker-0.status.json")
    (relay.near / "worker-0.status.json").unlink()
    relay.write("worker-0.status.json", "good\n")
    assert relay.read("worker-0.status.json") == "good\n"


def test_bytes_that_are_no_text_and_long_lines_arrive(relay):
    data = bytes(range(256)) * 100 + b"\n"
    (relay.far / "worker-0.log").write_bytes(data)
    relay.agent.send_all()
    relay.receive()
    assert (relay.near / "worker-0.log").read_bytes() == data


def test_a_launcher_that_does_not_read_never_blocks_the_agent(relay):
    fcntl.fcntl(relay.write_end, fcntl.F_SETPIPE_SZ, 4096)
    relay.write("worker-0.log", "line\n" * 100_000)
    begin = time.monotonic()
    for _ in range(3):
        relay.agent.send_new()
    relay.agent.send_all()
    assert time.monotonic() - begin < 10
    text = ""
    while len(text) < 500_000:
        text = relay.read("worker-0.log")
    assert text == "line\n" * 100_000, "nothing is lost or doubled"


def test_a_host_gets_what_it_needs_to_reach_the_bucket_and_no_more(tmp_path):
    key = tmp_path / "key.json"
    key.write_text('{"private_key": "secret"}')
    assert collect_store_environment(
        {
            "AWS_ACCESS_KEY_ID": "id",
            "AZURE_STORAGE_ACCOUNT_KEY": "key",
            "TRAINYARD_STORES": "{}",
            "GOOGLE_SERVICE_ACCOUNT": str(key),
            "AIRFLOW__CORE__FERNET_KEY": "no",
            "HOME": "/root",
        }
    ) == {
        "AWS_ACCESS_KEY_ID": "id",
        "AZURE_STORAGE_ACCOUNT_KEY": "key",
        "TRAINYARD_STORES": "{}",
        "GOOGLE_SERVICE_ACCOUNT_KEY": '{"private_key": "secret"}',
    }
