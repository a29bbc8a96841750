"""Two runs at once on a bucket, one of which is killed: nothing is lost, nothing doubled."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_chain import REPOSITORY
from object_servers.fault_proxy import FaultProxy
from object_servers.faults import Faults
from object_servers.s3_server import S3Server

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.contract.layout import Layout, iterate_manifests
from pipeline_ops.contract.manifest import find_damage
from pipeline_ops.errors import ExitCode
from pipeline_ops.examples.digits import write_digits
from pipeline_ops.orchestration.job_handle import JobHandle
from pipeline_ops.orchestration.job_start import prepare_job, start_job
from pipeline_ops.places.local import read_identity
from pipeline_ops.planning.job_kinds import JOBS
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.registry.registry import Registry
from pipeline_ops.system.processes import find_group_members

pytestmark = [pytest.mark.faults]

MAX_TRIES = 4


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    with S3Server() as server, FaultProxy(server.address) as proxy:
        server.make_bucket("bucket")
        proxy.faults = Faults(latency_seconds=0.02, unavailable_one_in=20, lost_answer_one_in=50)
        yield proxy


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits of scikit-learn as files."""
    folder = tmp_path_factory.mktemp("raw") / "digits"
    write_digits(folder)
    return folder


@pytest.fixture
def environment(proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3Server().build_environment(proxy.address).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRAINYARD_LOCAL_FOLDER", str(tmp_path / "local"))


@pytest.mark.parametrize("victim", JOBS)
def test_a_run_that_is_killed_anywhere_beside_another_one_loses_nothing(
    victim: str, raw: Path, environment: None
) -> None:
    config = load_config(
        REPOSITORY / "configs" / "digits.yaml",
        {
            "preprocess.source.path": str(raw),
            "storage.root": f"s3://bucket/kill-{victim}",
            "train.epochs": 1,
            "train.workers": 1,
            "train.strategy": "one_device",
            "evaluate.gate": [{"metric": "accuracy", "at_least": 0.0}],
        },
    )
    killed = Chain(config, "killed", victim)
    other = Chain(config, "other")
    threads = [threading.Thread(target=chain.run) for chain in (killed, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (killed.problem, other.problem) == ("", "")
    assert killed.manifests == other.manifests
    check_store(config)


def check_store(config: PipelineConfig) -> None:
    """Each artifact is there once and whole, and the model was published once."""
    layout = Layout(config.root, config.pipeline)
    for job in JOBS:
        [(path, manifest)] = iterate_manifests(layout.artifacts(job))
        assert find_damage(path, manifest) == []
    registry = Registry(config.registry)
    [version] = registry.list_versions()
    assert registry.find_champion() == version
    assert len(registry.read_history().moves) == 1


class Chain:
    """The four jobs of a run, one after the other. A job is killed once, and tried again."""

    def __init__(self, config: PipelineConfig, run_id: str, victim: str | None = None):
        self.config, self.run_id = config, run_id
        self.layout = Layout(config.root, config.pipeline)
        self.manifests: dict[str, str] = {}
        self.problem = ""
        self._victim = victim
        self._delay_seconds = random.Random(victim).uniform(0.2, 6.0)

    def run(self) -> None:
        try:
            for job in JOBS:
                self.manifests[job] = self._make(job)
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"

    def _make(self, job: str) -> str:
        for _ in range(MAX_TRIES):
            plan = plan_job(job, self.config, self.run_id, self.manifests)
            if plan.is_cached:
                return str(plan.manifest)
            handle = prepare_job(plan, self.layout, job)
            start_job(plan, handle)
            process = read_identity(handle.attempt.process)
            if self._victim == job:
                self._victim = None
                time.sleep(self._delay_seconds)
                kill_all(process.pid)
            status = wait_for_end(handle)
            if status.exit_code.leaves_manifest:
                return status.manifest or ""
            assert status.exit_code is ExitCode.RETRY, status
        raise AssertionError(f"{job} was not made in {MAX_TRIES} tries")


def kill_all(group: int) -> None:
    """Kills a job with all its processes, as a host that goes down does."""
    if find_group_members(group):
        os.killpg(group, signal.SIGKILL)


def wait_for_end(handle: JobHandle):
    while (status := handle.read_outcome()) is None:
        time.sleep(0.2)
    handle.clean_up()
    return status
