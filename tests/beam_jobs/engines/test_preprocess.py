"""The preprocess job on Flink and Spark. Its workers are another user, who shares only a bucket."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from engines.fixtures import USER
from listeners import filter_non_loopback, find_listeners
from processes import wait_until

from beam_jobs.preprocess import preprocess
from pipeline_ops.artifacts.damage import find_damage
from pipeline_ops.artifacts.layout import Attempt, work_folder
from pipeline_ops.artifacts.manifest import Manifest, read_manifest
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.errors import ExitCode
from pipeline_ops.examples.digits import write_digits
from pipeline_ops.jobs.progress import ProgressReader
from pipeline_ops.jobs.request import Status, read_status, write_request
from pipeline_ops.jobs.runner import run_request
from pipeline_ops.planning.plan import JobPlan, plan_job
from pipeline_ops.storage.store_path import StorePath

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]
REPOSITORY = Path(__file__).resolve().parents[3]
SUPPORT = REPOSITORY / "tests" / "support"
BCCD = Path(os.environ.get("TRAINYARD_BCCD", REPOSITORY.parent / "shared" / "data" / "bccd"))
MAX_CANCEL_SECONDS = 10


@dataclasses.dataclass
class Workplace:
    """A bucket with raw data, and the preprocess jobs that read and write there."""

    root: StorePath
    overrides: dict[str, object] = dataclasses.field(default_factory=dict)

    def fill(self, folder: Path) -> None:
        files = [file for file in folder.rglob("*") if file.is_file()]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda file: self._raw(folder, file).upload(file), files))

    def _raw(self, folder: Path, file: Path) -> StorePath:
        return self.root / "raw" / str(file.relative_to(folder))

    def plan(self, runner: dict | None = None, **overrides: object) -> JobPlan:
        """The runner is the embedded one by default."""
        values = {
            "preprocess.source.path": f"{self.root}/raw",
            "storage.root": str(self.root / "root"),
            "preprocess.runner": runner or {"workers": 1},
            "preprocess.stages": [
                {"decode": {"channels": 1}},
                "engine_stages:slow",
                {"resize": {"height": 28, "width": 28}},
            ],
        }
        return plan_job("preprocess", self.load(values | self.overrides | overrides), "run", {})

    def load(self, values: dict[str, object]) -> PipelineConfig:
        return load_config(REPOSITORY / "configs" / "digits.yaml", values)

    def request(self, plan: JobPlan) -> Attempt[StorePath]:
        attempt = Attempt(self.root / "attempts" / os.urandom(4).hex())
        write_request(attempt, plan.request)
        return attempt

    def run(self, plan: JobPlan) -> Status:
        attempt = self.request(plan)
        run_request(preprocess, str(attempt.request))
        return read_status(attempt)

    def start(self, plan: JobPlan) -> Driver:
        attempt = self.request(plan)
        argv = [sys.executable, "-m", "beam_jobs.__main__", "--request", str(attempt.request)]
        return Driver(subprocess.Popen(argv, cwd=REPOSITORY, start_new_session=True), attempt, plan)


@dataclasses.dataclass
class Driver:
    """A job in a process of its own."""

    process: subprocess.Popen
    attempt: Attempt[StorePath]
    plan: JobPlan

    def find_finished(self) -> dict[str, float]:
        """The finished shards, and when they were stored."""
        artifact = self.plan.manifest.parent
        results = (work_folder(artifact) / "preprocess" / "results").list_folder()
        names = {entry.name.removesuffix(".json") for entry in results}
        stored = {entry.name.partition("/")[2]: entry.modified for entry in artifact.walk()}
        return {name: stored[name] for name in names}

    def wait_for_shards(self, count: int) -> dict[str, float]:
        def is_there() -> bool:
            assert self.process.poll() is None, read_status(self.attempt)
            return len(self.find_finished()) >= count

        wait_until(is_there, seconds=120)
        return self.find_finished()

    def check_shards(self, before: dict[str, float]) -> None:
        """No shard that was finished then was stored again."""
        artifact = self.plan.manifest.parent
        after = {entry.name.partition("/")[2]: entry.modified for entry in artifact.walk()}
        assert {name: after[name] for name in before} == before

    def finish(self) -> Status:
        self.process.wait(600)
        return read_status(self.attempt)


def identify(manifest: Manifest) -> list[dict]:
    """Every file but the page, which tells how long the stages took."""
    return [file.identity for file in manifest.files if file.path != "data.html"]


@pytest.fixture(scope="module", params=["flink", "spark"])
def engine(request) -> str:
    """The engine of all tests in a row, because only one of them runs at a time."""
    return request.param


@pytest.fixture
def cluster(engine, engine_clusters):
    return engine_clusters.get(engine)


@pytest.fixture
def runner(cluster) -> dict:
    return {
        "name": cluster.name,
        "endpoint": cluster.job_endpoint,
        "rest_address": cluster.url,
        "worker_pool": cluster.pool,
        **({"parallelism": 2} if cluster.name == "flink" else {}),
    }


@pytest.fixture
def digits(s3_root, tmp_path, monkeypatch) -> Iterator[Workplace]:
    """200 digits in a bucket."""
    monkeypatch.syspath_prepend(str(SUPPORT))
    monkeypatch.setenv("PYTHONPATH", f"{SUPPORT}:{REPOSITORY}")
    monkeypatch.setenv("TRAINYARD_LOCAL_FOLDER", str(tmp_path / "local"))
    write_digits(tmp_path / "digits")
    for number in range(10):
        for file in sorted((tmp_path / "digits" / str(number)).iterdir())[20:]:
            file.unlink()
    workplace = Workplace(s3_root)
    workplace.fill(tmp_path / "digits")
    yield workplace


@pytest.fixture
def check_manifest(digits):
    """Compares a data set with that of the embedded runner, entry for entry."""

    def check(plan: JobPlan, runner_free: JobPlan) -> None:
        manifest = read_manifest(plan.manifest)
        assert find_damage(plan.manifest, manifest) == []
        assert work_folder(plan.manifest.parent).walk() == []
        plan.manifest.parent.remove_tree()
        assert runner_free.manifest == plan.manifest, "the runner is not in the fingerprint"
        assert digits.run(runner_free).exit_code is ExitCode.SUCCESS
        embedded = read_manifest(plan.manifest)
        assert identify(manifest) == identify(embedded)

    return check


def find_jobs(cluster) -> list:
    return [job for job in cluster.list_jobs() if job.name.startswith("trainyard-digits-")]


def is_empty(cluster) -> bool:
    """Whether all jobs have ended, and no worker process is left."""
    states = {job.state for job in find_jobs(cluster)}
    return states <= {"CANCELED", "FINISHED", "FAILED"} and not cluster.find_sdk_workers()


def test_the_data_set_of_digits_is_that_of_the_embedded_runner(
    digits, runner, cluster, check_manifest
):
    driver = digits.start(digits.plan(runner))
    driver.wait_for_shards(2)
    users = {process.username() for process in cluster.find_sdk_workers()}
    assert len(cluster.find_sdk_workers()) >= cluster.num_nodes and users == {USER}
    listeners = {
        name: find_listeners(process.pid for process in cluster.find_processes(name))
        for name in cluster.process_names
    }
    is_open = {name for name, found in listeners.items() if filter_non_loopback(found)}
    assert is_open <= {"job-server", *cluster.node_names}, "only Beam's servers in Java"
    status = driver.finish()
    assert status.exit_code is ExitCode.SUCCESS, status.message
    moments = ProgressReader(driver.attempt.progress).read_new()
    assert any(cluster.url in moment.message for moment in moments)
    assert any(0 < (moment.done or 0) < 200 for moment in moments), "live"
    check_manifest(driver.plan, digits.plan())


@pytest.mark.skipif(not BCCD.is_dir(), reason="needs the BCCD data set, see test_bccd.py")
def test_the_data_set_of_bccd_is_that_of_the_embedded_runner(digits, runner, check_manifest):
    (digits.root / "raw").remove_tree()
    digits.fill(BCCD)
    digits.overrides = {
        "preprocess.source": {"type": "voc", "path": f"{digits.root}/raw"},
        "preprocess.stages": [
            {"decode": {"channels": 3}},
            {"resize": {"height": 96, "width": 128}},
        ],
        "preprocess.rejects": {"max_count": 2},
        "train.model": "center_detector",
        "evaluate.gate": [{"metric": "map_50", "at_least": 0.1}],
    }
    plan = digits.plan(runner)
    status = digits.run(plan)
    assert status.exit_code is ExitCode.SUCCESS, status.message
    check_manifest(plan, digits.plan())


class TestFaults:
    """Spark may give up: it does not repeat a shuffle whose order may differ. Then the task is
    tried again."""

    def finish(self, digits, driver: Driver) -> None:
        status = driver.finish()
        if status.exit_code is ExitCode.RETRY:
            assert "spark" in str(driver.plan.request.config), status.message
            status = digits.run(driver.plan)
        assert status.exit_code is ExitCode.SUCCESS, status.message

    @pytest.mark.parametrize("victim", ["sdk worker", "node"])
    def test_a_killed_part_of_the_engine_costs_only_the_shards_in_flight(
        self, digits, runner, cluster, check_manifest, victim
    ):
        driver = digits.start(digits.plan(runner))
        before = driver.wait_for_shards(5)
        if victim == "sdk worker":
            cluster.kill_sdk_worker()
        else:
            cluster.kill_node(1)
        self.finish(digits, driver)
        driver.check_shards(before)
        check_manifest(driver.plan, digits.plan())

    def test_the_next_try_follows_the_job_of_a_killed_driver(
        self, digits, runner, cluster, check_manifest
    ):
        known = len(find_jobs(cluster))
        driver = digits.start(digits.plan(runner))
        before = driver.wait_for_shards(3)
        driver.process.kill()
        driver.process.wait()
        second = digits.start(driver.plan)
        self.finish(digits, second)
        driver.check_shards(before)
        assert len(find_jobs(cluster)) == known + 1, "it has started a second job"
        check_manifest(driver.plan, digits.plan())


class TestEnd:
    def test_a_cancelled_job_leaves_nothing_on_the_engine(self, digits, runner, cluster):
        driver = digits.start(digits.plan(runner))
        driver.wait_for_shards(1)
        began = time.monotonic()
        os.killpg(driver.process.pid, signal.SIGTERM)
        wait_until(lambda: is_empty(cluster), seconds=MAX_CANCEL_SECONDS)
        assert driver.process.wait(MAX_CANCEL_SECONDS) == ExitCode.CANCELLED
        assert time.monotonic() - began < MAX_CANCEL_SECONDS
        assert not driver.plan.manifest.exists()

    def test_a_late_job_leaves_nothing_on_the_engine(self, digits, runner, cluster):
        plan = digits.plan(runner)
        soon = plan.request.model_copy(update={"deadline_seconds": 40})
        status = digits.start(dataclasses.replace(plan, request=soon)).finish()
        assert status.exit_code is ExitCode.RETRY
        assert status.message == "not done after timeout_seconds (40)"
        wait_until(lambda: is_empty(cluster), seconds=MAX_CANCEL_SECONDS)

    def test_a_bug_of_the_author_is_not_repeated(self, digits, runner):
        names = [file.name for file in (digits.root / "raw" / "3").list_folder()]
        plan = digits.plan(
            runner,
            **{
                "preprocess.stages": [
                    "decode",
                    {"engine_stages:broken": {"key": f"3/{names[0]}"}},
                    {"resize": {"height": 28, "width": 28}},
                ]
            },
        )
        status = digits.run(plan)
        assert status.exit_code is ExitCode.BUG
        assert f"stage engine_stages:broken failed on 3/{names[0]}" in status.message
        assert "KeyError" in status.message


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class TestStop:
    def test_a_stopped_cluster_leaves_neither_processes_nor_files(self, engine, engine_clusters):
        cluster = engine_clusters.get(engine)
        processes = cluster.find_processes()
        engine_clusters.stop()
        assert not [process for process in processes if is_alive(process)]
        assert not cluster.folder.exists()
