"""The preprocess job on Flink and Spark. Its workers are another user, who shares only a bucket."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from beam_jobs.preprocess import preprocess
from pipeline_ops.artifacts.damage import find_damage
from pipeline_ops.artifacts.layout import Attempt, work_folder
from pipeline_ops.artifacts.manifest import Manifest, read_manifest
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.errors import ExitCode
from pipeline_ops.examples.digits import write_digits
from pipeline_ops.jobs.request import Status, read_status, write_request
from pipeline_ops.jobs.runner import run_request
from pipeline_ops.planning.plan import JobPlan, plan_job
from pipeline_ops.storage.store_path import StorePath

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]
REPOSITORY = Path(__file__).resolve().parents[3]
BCCD = Path(os.environ.get("TRAINYARD_BCCD", REPOSITORY.parent / "shared" / "data" / "bccd"))
DETECTOR = {
    "preprocess.source": {"type": "voc", "path": ""},
    "preprocess.stages": [
        {"decode": {"channels": 3}},
        {"clip_boxes": {}},
        {"resize": {"height": 96, "width": 128}},
    ],
    "train.model": "center_detector",
    "train.model_args": {},
    "evaluate.gate": [{"metric": "map_50", "at_least": 0.0}],
}


@dataclasses.dataclass
class Workplace:
    """A bucket with raw data, and the preprocess jobs that read and write there."""

    root: StorePath
    raw: str

    def load(self, runner: dict | None = None, **overrides: object) -> PipelineConfig:
        values = {
            "preprocess.source.path": self.raw,
            "storage.root": str(self.root / "root"),
            "preprocess.runner": runner or {"workers": 1},
        }
        return load_config(REPOSITORY / "configs" / "digits.yaml", overrides | values)

    def request(self, plan: JobPlan) -> Attempt[StorePath]:
        attempt = Attempt(self.root / "attempts" / os.urandom(4).hex())
        write_request(attempt, plan.request)
        return attempt

    def run(self, plan: JobPlan) -> Status:
        attempt = self.request(plan)
        run_request(preprocess, str(attempt.request))
        return read_status(attempt)


def fill(root: StorePath, folder: Path) -> None:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            (root / str(file.relative_to(folder))).upload(file)


def identify(manifest: Manifest) -> list[dict]:
    """Every file but the page, which tells how long the stages took."""
    return [file.identity for file in manifest.files if file.path != "data.html"]


@pytest.fixture(scope="module", params=["flink", "spark"])
def engine(request) -> str:
    """Of the module, so that all tests of an engine follow one another."""
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
def digits(s3_root, tmp_path) -> Workplace:
    write_digits(tmp_path / "digits")
    fill(s3_root / "raw", tmp_path / "digits")
    return Workplace(s3_root, f"{s3_root}/raw")


def test_the_data_set_is_that_of_the_embedded_runner(digits, runner):
    plan = plan_job("preprocess", digits.load(), "run", {})
    assert digits.run(plan).exit_code is ExitCode.SUCCESS
    embedded = read_manifest(plan.manifest)
    plan.manifest.parent.remove_tree()
    plan = plan_job("preprocess", digits.load(runner), "run", {})
    status = digits.run(plan)
    assert status.exit_code is ExitCode.SUCCESS, status.message
    manifest = read_manifest(plan.manifest)
    assert identify(manifest) == identify(embedded)
    assert find_damage(plan.manifest, manifest) == []
    assert work_folder(plan.manifest.parent).walk() == []
