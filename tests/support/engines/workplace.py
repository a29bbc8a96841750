"""A bucket in which preprocess jobs work on a cluster, and the processes that follow them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from processes import wait_until

from beam_jobs.preprocess import preprocess
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.contract.layout import Attempt, work_folder
from pipeline_ops.contract.manifest import Manifest
from pipeline_ops.contract.request import Status, read_status, write_request
from pipeline_ops.job.runner import run_request
from pipeline_ops.planning.plan import JobPlan, plan_job
from pipeline_ops.storage.store_path import StorePath

REPOSITORY = Path(__file__).resolve().parents[3]
SUPPORT = REPOSITORY / "tests" / "support"
MESSAGE_SECONDS = 30
"""From the start of a job on the engine to its message."""


@dataclasses.dataclass
class Workplace:
    """A bucket with raw data, and the preprocess jobs that read and write there."""

    root: StorePath
    logs: Path
    overrides: dict[str, object] = dataclasses.field(default_factory=dict)

    def fill(self, folder: Path) -> None:
        files = [file for file in folder.rglob("*") if file.is_file()]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda file: self._raw(folder, file).upload(file), files))

    def _raw(self, folder: Path, file: Path) -> StorePath:
        return self.root / "raw" / str(file.relative_to(folder))

    def build_values(self, runner: dict | None = None, **overrides: object) -> dict[str, object]:
        """The keys of the config, as they differ from those of `configs/digits.yaml`."""
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
        return values | self.overrides | overrides

    def plan(self, runner: dict | None = None, **overrides: object) -> JobPlan:
        """The runner is the embedded one by default."""
        return plan_job("preprocess", self.load(self.build_values(runner, **overrides)), "run", {})

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
        log = self.logs / f"{attempt.folder.name}.log"
        with open(log, "wb") as file:
            process = subprocess.Popen(
                argv, cwd=REPOSITORY, stdout=file, stderr=file, start_new_session=True
            )
        return Driver(process, attempt, plan, log)


@dataclasses.dataclass
class Driver:
    """A job in a process of its own."""

    process: subprocess.Popen
    attempt: Attempt[StorePath]
    plan: JobPlan
    log: Path

    @property
    def text(self) -> str:
        """All that it has written to stderr so far."""
        return self.log.read_text()

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


def find_jobs(cluster) -> list:
    return [job for job in cluster.list_jobs() if job.name.startswith("trainyard-digits-")]


def is_empty(cluster) -> bool:
    """Returns whether all jobs have ended, and no worker process is left.

    Beam leaves a worker whose TaskManager was killed.
    """
    states = {job.state for job in find_jobs(cluster)}
    return states <= {"CANCELED", "FINISHED", "FAILED"} and not cluster.find_sdk_workers()
