"""`trainyard tensorboard`: a real TensorBoard, asked over HTTP, on a real training."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
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

from pipeline_ops.cli.commands.tensorboard import update_links
from pipeline_ops.cli.main import main
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.layout import work_folder
from pipeline_ops.contract.manifest import NAME
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


def test_records_of_the_profiler_are_where_its_tab_looks(tmp_path):
    """It looks for `plugins/profile` below no folder that is a link."""
    config = load_config(write_config(tmp_path, {"storage.root": "root"}))
    events = tmp_path / "root" / "artifacts" / config.pipeline / "train" / ".abc.work" / TENSORBOARD
    trace = events / "plugins" / "profile" / "2026_11_29" / "host.xplane.pb"
    trace.parent.mkdir(parents=True)
    for file in (trace, events / "events.out.tfevents.1795995963.host.1.0.v2"):
        file.write_bytes(b"records")
    links = tmp_path / "links"
    links.mkdir()
    for _ in range(2):
        assert update_links(links, [config]) == 1
    found = [
        Path(folder, name)
        for folder, _, names in os.walk(links)  # follows no links, either
        for name in names
    ]
    assert [file.parent.parent.parent.name for file in found if file.name == trace.name] == [
        "plugins"
    ]
    shutil.rmtree(events)
    assert update_links(links, [config]) == 0 and not list(links.glob("*/*"))


@pytest.mark.airflow
def test_runs_have_readable_names_and_new_ones_appear_while_they_train(trained, opened, tmp_path):
    shutil.copytree(trained, tmp_path / "root")
    [artifact] = (tmp_path / "root" / "artifacts" / "digits" / "train").glob("[0-9a-f]*")
    with opened("root") as ask:
        [name] = wait_until(lambda: ask("runs"), SECONDS)
        began, fingerprint = _NAME.fullmatch(name).groups()
        assert artifact.name.startswith(fingerprint)
        age = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(f"{began}+00:00")
        assert dt.timedelta(0) <= age < dt.timedelta(hours=1)
        assert "validation_accuracy" in wait_until(
            lambda: ask("plugin/scalars/tags").get(name), SECONDS
        )
        running = work_folder(open_root(artifact.parent) / ("0" * 32)).local / TENSORBOARD
        shutil.copytree(artifact / TENSORBOARD, running)
        other = f"digits/{began} 00000000"
        wait_until(lambda: set(ask("runs")) == {name, other}, SECONDS)
        (artifact / NAME).rename(running.parent / NAME)
        running.parent.rename(artifact.with_name("0" * 32))  # it is finished
        shutil.rmtree(artifact)
        wait_until(lambda: ask("runs") == [other], SECONDS)


def test_the_runs_of_a_bucket_are_copied(trained, opened, s3_root):
    for file in filter(Path.is_file, trained.rglob("*")):
        (s3_root / str(file.relative_to(trained))).upload(file)
    with opened(str(s3_root)) as ask:
        [name] = wait_until(lambda: ask("runs"), SECONDS)
        assert _NAME.fullmatch(name)
        assert "loss" in wait_until(lambda: ask("plugin/scalars/tags").get(name), SECONDS)


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
    assert f"No training yet below {tmp_path}/root." in errors
    assert f"could not bind to port {port}" in errors
