"""`preprocess.source.download`: TensorFlow Datasets fetches a data set over HTTP, by real processes
that a config starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from answering_server import answering_server
from config_files import use_interpreter, write_config
from digits_builder import pack_digits

from pipeline_ops.cli.main import main
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ConfigError, DataError, ExitCode, MachineError
from pipeline_ops.places.source_download import download_source

SUPPORT = Path(__file__).resolve().parents[1] / "support"
DIGITS = "digits_builder.Digits"


@pytest.fixture(autouse=True)
def find_builder(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT), prepend=os.pathsep)


@pytest.fixture
def serve(monkeypatch):
    """Serves the file of the builder, and lists the requests."""
    servers, requests = [], []

    def serve(answer=lambda: (200, pack_digits())):
        def respond(method, path):
            requests.append(path)
            return answer()

        servers.append(answering_server(respond))
        monkeypatch.setenv("DIGITS_URL", f"http://{servers[-1].__enter__()}/digits.npz")
        return requests

    yield serve
    for server in servers:
        server.__exit__(None, None, None)


@pytest.fixture
def make_config(tmp_path):
    def make_config(builder=DIGITS, **changes):
        source = {
            "type": "tfds",
            "path": "datasets",
            "builder": builder,
            "parts": [{"name": "train"}, {"name": "test", "split": "test"}],
            "download": True,
        } | changes
        keys = {"storage.root": "root", "preprocess.source": source}
        return load_config(write_config(tmp_path, keys))

    return make_config


def test_a_data_set_is_downloaded_once_and_its_files_are_as_of_download_and_prepare(
    serve, make_config, tmp_path
):
    requests, config = serve(), make_config()
    with ThreadPoolExecutor() as pool:  # two runs at the same time
        list(pool.map(download_source, [config, config]))
    download_source(config)
    assert requests == ["/digits.npz"]
    found = {
        str(file.relative_to(tmp_path / "datasets")) for file in tmp_path.glob("datasets/**/*")
    }
    assert {
        "digits/1.0.0/dataset_info.json",
        "digits/1.0.0/digits-train.tfrecord-00000-of-00001",
        "digits/1.0.0/digits-test.tfrecord-00000-of-00001",
    } <= found
    assert not [name for name in found if "incomplete" in name or ".digits.download" in name]


def test_a_download_that_is_killed_leaves_no_data_and_the_next_one_completes_it(
    serve, make_config, tmp_path
):
    is_asked, may_answer = threading.Event(), threading.Event()

    def answer():
        is_asked.set()
        may_answer.wait(60)
        return 200, pack_digits()

    serve(answer)
    config = make_config()
    words = ["-m", "beam_jobs.download", DIGITS, str(tmp_path / "datasets" / "digits")]
    with subprocess.Popen([sys.executable, *words], stderr=subprocess.DEVNULL) as process:
        assert is_asked.wait(60)
        process.send_signal(signal.SIGKILL)
    may_answer.set()
    assert not (tmp_path / "datasets" / "digits").exists()
    download_source(config)
    assert [entry.name for entry in (tmp_path / "datasets" / "digits").iterdir()] == ["1.0.0"]


def test_what_cannot_be_fetched_is_tried_again_and_the_cure_without_a_network_is_told(
    serve, make_config, tmp_path
):
    serve(lambda: (404, b"none"))
    with pytest.raises(MachineError) as caught:
        download_source(make_config())
    folder = tmp_path / "datasets"
    assert f"{DIGITS} cannot be downloaded into {folder}: DownloadError: " in str(caught.value)
    assert (
        "Without a network, prepare it on another host with file_format='tfrecord', and copy "
        f"digits/ from its data_dir to {folder}/digits." in str(caught.value)
    )


@pytest.mark.parametrize(
    "builder, changes, error, message",
    [
        ("no_such_set", {}, DataError, "no_such_set cannot be prepared in .*DatasetNotFoundError"),
        (DIGITS, {"path": "gs://a/b"}, ConfigError, "needs a folder of Airflow's host as path"),
    ],
)
def test_what_can_never_be_downloaded_is_told(make_config, builder, changes, error, message):
    with pytest.raises(error, match=message) as caught:
        download_source(make_config(builder, **changes))
    assert not caught.value.exit_code.is_retried


def test_an_interpreter_without_the_packages_is_told(make_config, tmp_path):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    config = make_config()
    changes = use_interpreter(config.file.parent, bare / "bin" / "python", "preprocess")
    config = config.with_overrides(changes)
    with pytest.raises(ConfigError, match="No module named .*needs Trainyard's extra `preprocess`"):
        download_source(config)


def test_commands_before_the_first_run_do_not_miss_the_data(serve, make_config, capsys):
    requests, file = serve(), str(make_config().file)
    assert main(["explain", file]) == ExitCode.SUCCESS
    assert "downloads the data set of preprocess.source first" in capsys.readouterr().out
    assert main(["validate", file]) == ExitCode.SUCCESS
    assert requests == []
    assert main(["validate", "--deep", file]) == ExitCode.SUCCESS
    assert requests == ["/digits.npz"]
