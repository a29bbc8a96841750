"""A bucket that cannot be used is refused by name, before any work."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

import pytest
from answering_server import answering_server
from config_files import write_config

from pipeline_ops.cli.main import main
from pipeline_ops.errors import ConfigError, ExitCode, MachineError


@pytest.fixture
def config_file(tmp_path) -> Path:
    changes = {
        "storage": {"root": str(tmp_path / "root")},
        "export.registry": str(tmp_path / "registry"),
        "preprocess.source.path": str(tmp_path / "raw"),
    }
    for name in ("0/a.png", "1/b.png"):
        (tmp_path / "raw" / name).parent.mkdir(parents=True)
        (tmp_path / "raw" / name).write_bytes(b"an image")
    return write_config(tmp_path, changes)


@pytest.fixture
def use_bucket(config_file, monkeypatch):
    """Puts the storage root into a bucket at an endpoint."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")

    def use_bucket(root: str, endpoint: str) -> None:
        storage = {"storage": {"root": root, "endpoint": endpoint}}
        write_config(config_file.parent, storage, base=config_file)

    return use_bucket


def locate(config_file: Path, key: str) -> str:
    """File and line of the only key of that name in a config."""
    before, _, _ = config_file.read_text().partition(f" {key}:")
    return f"{config_file}:{before.count(chr(10)) + 1}"


@pytest.mark.parametrize(
    ("command", "status", "kind", "problem"),
    [
        ("validate", 403, ConfigError, "the store denies access"),
        ("validate", 418, MachineError, "418.*s3://bucket/root at http://127"),
        ("run", 404, ConfigError, "at http://127.*404: there is no such bucket, or no object sto"),
        ("explain", 404, ConfigError, "at http://127.*404: there is no such bucket, or no object"),
        ("run", 200, ConfigError, "no object store: it accepts a file, and does not return it"),
    ],
)
def test_a_bucket_that_can_not_be_used_is_told_file_line_and_key(
    config_file, use_bucket, tmp_path, monkeypatch, command, status, kind, problem, capsys
):
    """No command starts an Airflow for it, and none ends with a traceback."""
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "home"))

    def answer(method: str, path: str) -> tuple[int, bytes]:
        return status, b"hi" if method == "GET" else b""

    with answering_server(answer, headers={"ETag": "1"}) as host:
        use_bucket("s3://bucket/root", f"http://{host}")
        assert main([command, str(config_file)]) == kind("", "").exit_code
    message = capsys.readouterr().err
    assert re.search(problem, message), message
    if command != "explain":
        assert f"{locate(config_file, 'root')}: storage.root: " in message
    assert not (tmp_path / "home").exists()


@pytest.mark.stores
@pytest.mark.parametrize("command", ["validate", "explain", "gc"])
def test_a_store_that_never_answers_is_named_within_half_a_minute(
    config_file, use_bucket, command, capsys
):
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:  # accepts nothing
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        use_bucket(f"s3://bucket/{command}", endpoint)
        began = time.monotonic()
        assert main([command, str(config_file)]) == ExitCode.RETRY
        assert time.monotonic() - began < 60  # on a busy machine
    message = capsys.readouterr().err
    assert f"it did not answer in time (s3://bucket/{command}" in message
    assert f"at {endpoint}). Check that the store can be reached" in message
