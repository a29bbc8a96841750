"""Fixtures of the tests of the command line: finished runs that are made by hand, and a search for
processes that survived."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli import by_hand, services
from cli.digits_airflow import Airflow, Run, make_pipeline
from cli.training_ends import ENDED_SECONDS
from config_files import write_config
from processes import Stopwatch, find_child_processes, is_running, kill, query_process, wait_until

from pipeline_ops.cli.main import main
from pipeline_ops.config.pipeline import load_config

_TAG = "TRAINYARD_TEST_TAG"


@pytest.fixture
def config_file(tmp_path) -> Path:
    """A copy of configs/digits.yaml with two raw files and a storage root next to it."""
    for label in "01":
        (tmp_path / "raw" / label).mkdir(parents=True)
        (tmp_path / "raw" / label / "a.png").write_bytes(label.encode())
    changes = {"storage.root": "root", "preprocess.source.path": "raw", "train.epochs": 15}
    return write_config(tmp_path, {**changes, "train.global_batch_size": 64, "train.workers": 2})


@pytest.fixture
def make_artifact(config_file) -> Callable[..., str]:
    """Makes the artifact of a job with the fingerprint of its plan. Returns its manifest's URI."""
    return lambda job, manifests, **figures: by_hand.make_artifact(
        load_config(config_file), job, manifests, **figures
    )


@pytest.fixture
def publish(config_file) -> Callable[[int], None]:
    """Publishes a version that was made by hand, and puts it in service."""
    return lambda number: by_hand.publish(load_config(config_file), number)


@pytest.fixture
def command(capsys) -> Callable[..., str]:
    """Runs a command, which must end with a status. Returns its output, or its errors."""

    def command(*words: object, status: int = 0) -> str:
        found = main([*map(str, words)])
        output, errors = capsys.readouterr()
        assert found == status, output + errors
        return errors if status else output

    return command


class Survivors:
    """Finds every process that was started with its environment, and every descendant of those."""

    def __init__(self):
        self._tag, self._seen = uuid.uuid4().hex, {}

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {_TAG: self._tag}

    def look(self) -> list[psutil.Process]:
        """The living processes, with those that an earlier look found under another name."""
        for process in psutil.process_iter():
            if self._is_ours(process):
                self._seen[process.pid] = process
                self._seen |= {child.pid: child for child in find_child_processes(process)}
        return [process for process in self._seen.values() if is_running(process)]

    def wait_for(self, count: int, seconds: float = 60.0) -> None:
        """Waits for a number of processes. Fails after the time."""
        wait_until(lambda: len(self.look()) == count, seconds)

    def wait_for_none(self, seconds: float) -> None:
        """Fails if a process is left after the time, and names it."""
        watch = Stopwatch()
        while (left := self.look()) and watch.seconds < seconds:
            time.sleep(0.1)
        assert not left, left

    def _is_ours(self, process: psutil.Process) -> bool:
        return query_process(process.environ, gone={}).get(_TAG) == self._tag


def _find_survivors() -> Iterator[Survivors]:
    """Finds the processes that a test or a module starts. Those that remain are killed after it."""
    found = Survivors()
    yield found
    for process in found.look():
        kill(process)


survivors = pytest.fixture(_find_survivors)
whole_module_survivors = pytest.fixture(_find_survivors, scope="module")


@pytest.fixture(scope="module")
def airflow(request, tmp_path_factory) -> Iterator[Airflow]:
    """An Airflow with a data set that exists already, whose programs are killed by signal 9.

    Each module with one starts two, for all of its rows: one with LocalExecutor on SQLite, one with
    CeleryExecutor on PostgreSQL and Redis.
    """
    if request.param == "celery" and (reason := services.why_not()):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp(f"durable-{request.param}")
    make_pipeline(folder)
    # Not below Airflow's folder: its end kills all processes there.
    servers = tmp_path_factory.mktemp("servers") / "both"
    is_celery = request.param == "celery"
    settings = services.celery_settings(servers) if is_celery else contextlib.nullcontext({})
    with settings as executor:
        airflow = Airflow(folder, os.environ, executor)
        try:
            airflow.begin()
            yield airflow
        finally:
            airflow.end()


@pytest.fixture
def training(airflow):
    """Starts a run with a long training. After the test, nothing of it may be left."""
    runs = []

    def start(
        epochs: int = 5000, task: str = "train", author: Mapping[str, Any] | None = None, **conf
    ) -> Run:
        seed = time.time_ns() % 2**31  # for a training that no other row has made
        conf = {"train__epochs": epochs, "train__seed": seed} | conf
        runs.append(airflow.trigger(task, author, **conf))
        return runs[-1]

    yield start
    airflow.restart(*airflow.commands)
    for run in runs:
        answer = airflow.call("PATCH", run.path, {"state": "failed"})
        assert answer.status_code in (200, 404)  # 404 where it was deleted
        wait_until(lambda run=run: not run.processes(), ENDED_SECONDS)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts a module's tests with one executor together, so that each starts once."""
    for name in ("test_durable.py", "test_ended_trainings.py"):
        at = [n for n, item in enumerate(items) if item.path.name == name]
        tests = sorted((items[n] for n in at), key=lambda item: item.callspec.params["airflow"])
        for n, test in zip(at, tests, strict=True):
            items[n] = test
