"""`trainyard tensorboard`: a real TensorBoard, asked over HTTP, on a real training."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from config_files import write_config
from gangs import ALONE, QUICK
from processes import wait_until

from pipeline_ops.cli.main import main
from pipeline_ops.contract.layout import work_folder
from pipeline_ops.contract.results import TENSORBOARD
from pipeline_ops.errors import ExitCode
from pipeline_ops.launch.train import train
from pipeline_ops.storage.open_store import open_root

_ADDRESS = re.compile(r"http://\S+/")
_NAME = re.compile(r"digits/([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}) ([0-9a-f]{8})")
SECONDS = 90.0


@pytest.fixture(scope="module")
def trained(dataset, make_job_in, tmp_path_factory) -> Path:
    """The storage root of one real training of `configs/digits.yaml`."""
    folder = tmp_path_factory.mktemp("trained")
    assert train(make_job_in(folder, dataset)(**QUICK, **ALONE)) is ExitCode.SUCCESS
    return folder / "root"


@pytest.fixture
def opened(tmp_path):
    """Opens TensorBoard over a storage root. Returns a function that asks its API."""

    @contextlib.contextmanager
    def opened(root: str):
        config = write_config(tmp_path, {"storage.root": root})
        words = ["-m", "pipeline_ops.cli.main", "tensorboard", "--port", "0", str(config)]
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, *words], stderr=pipe, text=True) as process:
            found = next(filter(None, map(_ADDRESS.search, process.stderr)), None)
            assert found, process.wait()
            reader = threading.Thread(target=process.stderr.read)
            reader.start()

            def ask(path: str, host: str = "localhost"):
                request = urllib.request.Request(f"{found[0]}data/{path}", headers={"Host": host})
                with urllib.request.urlopen(request, timeout=30) as response:
                    return json.load(response)

            try:
                yield ask
            finally:
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 130
                reader.join()

    return opened


@pytest.mark.airflow
def test_finished_and_running_trainings_are_shown_and_new_ones_appear(trained, opened, tmp_path):
    shutil.copytree(trained, tmp_path / "root")
    [artifact] = (tmp_path / "root" / "artifacts" / "digits" / "train").glob("[0-9a-f]*")
    with opened("root") as ask:
        [name] = wait_until(lambda: ask("runs"), SECONDS)
        assert name == f"{artifact.name}/{TENSORBOARD}"
        assert "validation_accuracy" in wait_until(
            lambda: ask("plugin/scalars/tags").get(name), SECONDS
        )
        running = work_folder(open_root(artifact.parent) / ("0" * 32)).local / TENSORBOARD
        shutil.copytree(artifact / TENSORBOARD, running)
        other = f"{running.parent.name}/{TENSORBOARD}"
        wait_until(lambda: set(ask("runs")) == {name, other}, SECONDS)
        running.parent.rename(artifact.with_name("0" * 32))  # it is finished
        wait_until(lambda: set(ask("runs")) == {name, f"{'0' * 32}/{TENSORBOARD}"}, SECONDS)


@pytest.mark.parametrize("roots", [["s3://bucket/root"], ["one", "two"]])
def test_storage_that_is_not_one_folder_is_refused(tmp_path, capsys, roots):
    files = [
        str(write_config(tmp_path / str(number), {"storage.root": root}))
        for number, root in enumerate(roots)
    ]
    assert main(["tensorboard", *files]) == ExitCode.CONFIG
    assert "Name a config whose storage.root is a folder" in capsys.readouterr().err


def test_a_foreign_name_is_refused_so_that_no_page_can_read_it_by_rebinding(opened):
    """M11."""
    with opened("root") as ask:
        for host in ("localhost:1", "127.0.0.1", "[::1]:6006", f"{socket.gethostname()}:6006"):
            assert ask("environment", host)["version"], host
        for host in ("evil.example", "evil.example:6006", "localhost.evil.example", ""):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                ask("environment", host)


def test_a_port_that_is_taken_is_an_error_with_the_message_of_tensorboard(tmp_path, capfd):
    config = write_config(tmp_path, {"storage.root": "root"})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["tensorboard", "--port", port, str(config)]) == ExitCode.RETRY
    errors = capfd.readouterr().err
    assert f"No training yet below {tmp_path}/root/artifacts/digits/train." in errors
    assert f"could not bind to port {port}" in errors
