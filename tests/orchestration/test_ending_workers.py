"""A run whose workers are removed with all their processes whenever a task defers, as the pods of
KubernetesExecutor are. Jobs run in containers, and the storage root is in a bucket."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from config_files import write_config, write_digits

from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.orchestration.trigger import JobTrigger
from pipeline_ops.planning.job_kinds import JOBS
from pipeline_ops.storage.open_store import open_root

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]


@pytest.fixture
def config(engine, image, bucket, tmp_path) -> Path:
    """The digits with their raw data and their root in a bucket, and all tasks in containers."""
    raw = tmp_path / "raw"
    write_digits(raw)
    target = open_root(f"{bucket}/raw")
    for file in sorted(raw.rglob("*.png")):
        (target / str(file.relative_to(raw))).upload(file)
    changes = {f"{job}.runs_on": "box" for job in JOBS} | {"train.epochs": 12}
    changes |= {"storage.root": f"{bucket}/root", "preprocess.source.path": f"{bucket}/raw"}
    (tmp_path / "hosts").mkdir()
    hosts = engine.hosts_file(image=image("jobs"), memory="4Gi")
    (tmp_path / "hosts" / "box.yaml").write_text(yaml.safe_dump(hosts))
    return write_config(tmp_path, changes)


def run_in_a_pod(given: dict) -> dict:
    """Executes a task in a process namespace of its own, which ends with it."""
    argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run(
        [*argv, sys.executable, "-m", "ending_worker"],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{CODE_ROOT}:{CODE_ROOT / 'tests' / 'support'}"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def run_task(job: str, config: Path, manifests: dict[str, str]) -> tuple[str, int]:
    """Returns the manifest of a task, and how often it has deferred."""
    given = {"job": job, "config": str(config), "store": {}, "manifests": manifests, "event": None}
    num_deferrals = 0
    while "manifest" not in (answer := run_in_a_pod(given)):
        num_deferrals += 1
        event = asyncio.run(wait_for_trigger(answer["trigger"]))
        given |= {"store": answer["store"], "event": event}
    return answer["manifest"], num_deferrals


async def wait_for_trigger(arguments: dict) -> dict:
    async for event in JobTrigger(**arguments).run():
        return event.payload
    raise AssertionError("the trigger has ended without an event")


def test_all_four_jobs_outlive_the_pods_of_their_tasks(config, engine):
    before = engine.docker("ps", "-aq"), engine.list_volumes()
    manifests: dict[str, str] = {}
    for job in JOBS:
        manifests[job], num_deferrals = run_task(job, config, manifests)
        assert num_deferrals == 1, "its pod was removed once while the job ran"
    figures = read_manifest(manifests["export"]).figures
    assert figures["version"] == 1
    fingerprint = read_manifest(manifests["train"]).fingerprint
    assert list(fingerprint.versions) == ["image"]
    after = engine.docker("ps", "-aq"), engine.list_volumes()
    assert after == before, "their containers and volumes are removed"
