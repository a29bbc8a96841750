"""A storage root on a file system that lacks something is refused by name, before any work."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from answering_server import answering_server
from config_files import write_config

from pipeline_ops.cli.main import main
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ConfigError, ExitCode, MachineError
from pipeline_ops.planning.storage_probe import check_storage

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def config_file(tmp_path) -> Path:
    changes = {
        "storage": {"root": str(tmp_path / "root")},
        "export.registry": str(tmp_path / "registry"),
        "preprocess.source.path": str(tmp_path / "raw"),
    }
    for name in ("root", "registry", "raw/0", "raw/1"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("0/a.png", "1/b.png"):
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


NOT_MADE = "Function not implemented"
VALIDATE = "sys.exit(main(['validate', sys.argv[1]]))"
CHECK = """
try:
    check_storage(load_config(sys.argv[1]))
except ConfigError as error:
    sys.exit(print(error, file=sys.stderr) or error.exit_code)
"""


def run_without(calls: dict[str, int], config_file: Path, code: str) -> subprocess.CompletedProcess:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests' / 'support')!r}]\n"
        "import failing_syscalls\n"
        "from pipeline_ops.cli.main import main\n"
        "from pipeline_ops.config.pipeline import load_config\n"
        "from pipeline_ops.errors import ConfigError\n"
        "from pipeline_ops.planning.storage_probe import check_storage\n"
        f"failing_syscalls.fail_syscalls({calls!r})\n{code}"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(config_file)], capture_output=True, text=True, timeout=120
    )


def test_an_ordinary_disk_has_all_and_nothing_is_left_on_it(config_file, tmp_path):
    check_storage(load_config(config_file))
    assert os.listdir(tmp_path / "root") == os.listdir(tmp_path / "registry") == []


@pytest.mark.parametrize(
    "calls, lacks",
    [
        ({"flock": errno.ENOSYS}, rf"flock \({NOT_MADE}\)"),
        ({"flock": errno.ENOLCK}, r"flock \(No locks available\)"),
        ({"rename": errno.ENOSYS}, rf"rename of files \({NOT_MADE}\), rename of folders"),
        ({"fsync": errno.EINVAL}, r"fsync of files \(Invalid argument\), fsync of folders"),
    ],
)
def test_a_refusal_names_the_key_the_folder_and_what_is_missing(
    config_file, tmp_path, calls, lacks
):
    """F14."""
    ended = run_without(calls, config_file, CHECK)
    assert ended.returncode == 78, ended.stderr
    where = locate(config_file, "root")
    assert f"{where}: storage.root: the file system of {tmp_path / 'root'} lacks " in ended.stderr
    assert re.search(f"lacks {lacks}", ended.stderr), ended.stderr


def test_a_registry_in_a_folder_is_tried_and_named(config_file, tmp_path):
    (tmp_path / "root").rmdir()
    ended = run_without({"flock": errno.ENOSYS}, config_file, CHECK)
    where = locate(config_file, "registry")
    assert f"{where}: export.registry: the file system of {tmp_path / 'registry'}" in ended.stderr


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


def test_validate_tries_the_storage(config_file):
    """F14."""
    ended = run_without({"fsync": errno.EINVAL}, config_file, VALIDATE)
    assert ended.returncode == 78 and "lacks fsync of files" in ended.stderr


def test_hard_links_are_not_needed(config_file):
    """F14."""
    ended = run_without({"link": errno.EPERM}, config_file, VALIDATE)
    assert ended.returncode == 0, ended.stderr


def test_a_temporary_folder_without_locks_is_named(config_file):
    """F14."""
    ended = run_without({"flock": errno.ENOLCK}, config_file, VALIDATE)
    cure = "no locks available. Use a file system that supports flock, or set TMPDIR"
    assert ended.returncode == 75 and cure in ended.stderr, ended.stderr


def test_a_root_that_is_not_there_yet_is_no_fault(config_file, tmp_path):
    (tmp_path / "root").rmdir()
    check_storage(load_config(config_file))
    assert not (tmp_path / "root").exists()
