"""An outage of the store of 60 s in the middle of each task, of a gang and of a promotion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from job_chain import REPOSITORY
from object_servers.fault_proxy import FaultProxy
from object_servers.faults import Faults
from object_servers.s3_server import S3Server
from publishers import publish

from pipeline_ops.contract.layout import Attempt, Layout, iterate_manifests
from pipeline_ops.contract.manifest import find_damage
from pipeline_ops.contract.request import Status
from pipeline_ops.errors import ExitCode
from pipeline_ops.examples.digits import write_digits
from pipeline_ops.planning.job_kinds import JOBS
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_path import StorePath

pytestmark = [pytest.mark.stores, pytest.mark.timeout(900)]

ROOT = "s3://bucket/outages"
OUTAGE_SECONDS = 60.0
SLOW = Faults(latency_seconds=0.1, bytes_per_second=200e3)
"""So that each job talks with the store for a while."""
AWAY, AGAIN = "The store is away since", "is there again after"
LAYOUT = Layout(open_root(ROOT), "digits")
ONE_TASK = Path(__file__).parents[1] / "support" / "one_task.py"
PROMOTE = (
    "from pipeline_ops.registry.registry import Registry; import sys; "
    "Registry(sys.argv[1]).promote(1, 'better')"
)
GANG = {"train.workers": 2, "train.strategy": "multi_worker_mirrored"}
TASKS: list[tuple[str, str, dict[str, Any]]] = [
    ("preprocess", "preprocess", {"preprocess.split.seed": 4}),
    ("train", "train", {"train.seed": 2}),
    ("gang", "train", GANG),
    ("evaluate", "evaluate", {"evaluate.gate": [{"metric": "accuracy", "at_least": 0.01}]}),
    ("export", "export", {}),
]
"""The runs with the job of each and the overrides by which nothing is cached."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server, pytest.MonkeyPatch.context() as patch:
        server.make_bucket("bucket")
        for name, value in server.build_environment().items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    raw = tmp_path_factory.mktemp("raw") / "digits"
    write_digits(raw)
    return {
        "preprocess.source.path": str(raw),
        "storage.root": ROOT,
        "train.epochs": 2,
        "train.workers": 1,
        "train.strategy": "one_device",
        "evaluate.gate": [{"metric": "accuracy", "at_least": 0.0}],
    }


@pytest.fixture(scope="module")
def manifests(server, overrides, tmp_path_factory) -> dict[str, str]:
    """The artifacts of a run without an outage, as inputs."""
    made: dict[str, str] = {}
    for job in ("preprocess", "train", "evaluate"):
        process = start_task("whole", job, overrides, made, {}, tmp_path_factory.mktemp(job))
        made[job] = check_success(process)
    return made


def start_task(
    run: str,
    job: str,
    overrides: dict[str, Any],
    manifests: dict[str, str],
    environment: dict[str, str],
    folder: Path,
) -> subprocess.Popen[str]:
    config = str(REPOSITORY / "configs" / "digits.yaml")
    task = {"config": config, "overrides": overrides, "job": job, "run": run}
    argv = [sys.executable, ONE_TASK, json.dumps(task | {"manifests": manifests})]
    return start(argv, environment | {"TRAINYARD_LOCAL_FOLDER": str(folder)})


def start(argv: list[Any], environment: dict[str, str]) -> subprocess.Popen[str]:
    path = {"PYTHONPATH": str(REPOSITORY)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        argv, env=os.environ | path | environment, stdout=pipe, stderr=pipe, text=True
    )


def check_success(process: subprocess.Popen[str]) -> str:
    """Waits for a task. Returns the URI of its manifest."""
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    status = Status.model_validate_json(output)
    assert status.exit_code is ExitCode.SUCCESS and status.manifest, status
    process.log = errors  # type: ignore[attr-defined]
    return status.manifest


def wait_and_end(proxy: FaultProxy, is_in_the_middle: Callable[[], bool]) -> None:
    """Waits for the middle of the work, and lets the store be away for a minute."""
    while not is_in_the_middle():
        time.sleep(0.1)
    with proxy.failing(refused=True):
        time.sleep(OUTAGE_SECONDS)


def find_attempt(run: str, job: str) -> Attempt[StorePath] | None:
    return LAYOUT.newest_attempt(run, job)


def has_begun(run: str, job: str) -> bool:
    """Returns whether the job has reported progress. It must not have ended."""
    attempt = find_attempt(run, job)
    if attempt is None or attempt.progress.read_log_end(1) == (0, b""):
        return False
    assert not attempt.status.exists(), f"the {job} was too fast"
    return True


def read_text(log: StorePath) -> str:
    return log.read_log(0, 1 << 20).decode()


def find_lines(text: str, part: str) -> list[str]:
    return [line for line in text.splitlines() if part in line]


def test_an_outage_of_a_minute_costs_no_try_and_is_said_once(
    server, overrides, manifests, tmp_path
):
    """N6."""

    def run_task(run: str, job: str, changed: dict[str, Any]) -> str:
        with FaultProxy(server.address, SLOW) as proxy:
            environment = server.build_environment(proxy.address)
            arguments = (overrides | changed, manifests, environment, tmp_path / run)
            process = start_task(run, job, *arguments)
            wait_and_end(proxy, lambda: has_begun(run, job))
            assert process.poll() is None
            check_success(process)
        return process.log  # type: ignore[attr-defined]

    def run_promotion() -> str:
        location = f"{ROOT}/models/other"
        for digest in ("first", "second"):
            version = publish(Registry(location), digest)
        Registry(location).promote(version.number, "newest")
        with FaultProxy(server.address, Faults(latency_seconds=1)) as proxy:
            environment = server.build_environment(proxy.address)
            process = start([sys.executable, "-c", PROMOTE, location], environment)
            wait_and_end(proxy, lambda: proxy.num_requests >= 2)
            assert process.poll() is None
            _, errors = process.communicate()
        assert process.returncode == 0, errors
        assert [move.version for move in Registry(location).read_history().moves] == [2, 1]
        return errors

    with ThreadPoolExecutor(len(TASKS) + 1) as pool:
        promotion = pool.submit(run_promotion)
        calls = {task[:2]: pool.submit(run_task, *task) for task in TASKS}
        logs = {f"task {run}": call.result() for (run, _), call in calls.items()}
        logs["promote"] = promotion.result()
    for run, job, _ in TASKS:
        attempt = find_attempt(run, job)
        assert attempt is not None and len(attempt.folder.parent.list_folder()) == 1
        logs[f"job {run}"] = read_text(attempt.log)
    lines = {name: [find_lines(text, AWAY), find_lines(text, AGAIN)] for name, text in logs.items()}
    print(json.dumps(lines, indent=1))
    assert all([len(found) for found in pair] == [1, 1] for pair in lines.values()), logs
    gang = find_attempt("gang", "train")
    assert gang is not None and '"phase":"restart"' not in read_text(gang.progress)
    for worker in ("worker-0", "worker-1"):
        assert len(find_lines(read_text(gang.worker_log(worker)), AWAY)) <= 1
    for job in JOBS:
        for uri, manifest in iterate_manifests(LAYOUT.artifacts(job)):
            assert find_damage(uri, manifest) == []
