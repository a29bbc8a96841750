"""A cluster for each module of tests, and a bucket with digits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from engines.workplace import REPOSITORY, SUPPORT, Driver, Workplace, find_jobs, identify
from processes import wait_until

from pipeline_ops.contract.layout import work_folder
from pipeline_ops.contract.manifest import find_damage, read_manifest
from pipeline_ops.errors import ExitCode
from pipeline_ops.examples.digits import write_digits
from pipeline_ops.planning.plan import JobPlan


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
        **({"options": {"parallelism": 2}} if cluster.name == "flink" else {}),
    }


@pytest.fixture
def digits(s3_root, tmp_path, monkeypatch) -> Iterator[Workplace]:
    """120 digits in a bucket."""
    monkeypatch.syspath_prepend(str(SUPPORT))
    monkeypatch.setenv("PYTHONPATH", f"{SUPPORT}:{REPOSITORY}")
    monkeypatch.setenv("TRAINYARD_LOCAL_FOLDER", str(tmp_path / "local"))
    write_digits(tmp_path / "digits")
    for number in range(10):
        for file in sorted((tmp_path / "digits" / str(number)).iterdir())[12:]:
            file.unlink()
    workplace = Workplace(s3_root, tmp_path)
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


@pytest.fixture
def start(digits, runner, cluster) -> Callable[[], Driver]:
    """Starts a job, and returns when the engine lists it."""

    def start_job(height: int = 28, **more: object) -> Driver:
        known = len(find_jobs(cluster))
        stages = ["decode", "engine_stages:slow", {"resize": {"height": height, "width": 28}}]
        plan = digits.plan(runner | more, **{"preprocess.stages": stages})
        driver = digits.start(plan)
        wait_until(lambda: len(find_jobs(cluster)) > known)
        return driver

    return start_job
