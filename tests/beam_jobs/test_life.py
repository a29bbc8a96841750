"""A job process that is killed, cancelled, met by another one,
or let down by its worker or its disk."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys

import psutil
import pytest

from pipeline_ops.contract.layout import work_folder
from pipeline_ops.contract.manifest import find_damage
from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.contract.request import read_status
from pipeline_ops.errors import ExitCode
from pipeline_ops.orchestration.job_handle import JobHandle
from pipeline_ops.storage.local_files import write_json
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.system.processes import ProcessIdentity, find_group_members


def num_done(attempt) -> int:
    return max(
        (
            moment.done or 0
            for moment in ProgressReader(attempt.progress).read_new()
            if moment.phase == "preprocess"
        ),
        default=0,
    )


def find_workers(process: subprocess.Popen) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children()
    return [child for child in children if "spawn_main" in str(child.cmdline())]


@pytest.fixture
def started(large_animals, wait_for):
    """Starts the job and returns once the first images are done;
    kills at the end what is left of its group."""
    groups = []

    def start(**overrides):
        plan = large_animals.plan(**overrides)
        process, attempt = large_animals.start(plan)
        groups.append(process.pid)
        wait_for(lambda: num_done(attempt) or process.poll() is not None)
        assert process.poll() is None, attempt.log.local.read_text()
        return plan, process, attempt

    yield start
    for group in groups:
        if find_group_members(group):
            os.killpg(group, signal.SIGKILL)


@pytest.mark.faults
@pytest.mark.parametrize("workers", [1, 2])
def test_a_try_after_a_killed_one_builds_only_what_was_in_flight(
    large_animals, started, wait_for, workers
):
    plan, process, attempt = started(runner={"workers": workers}, shards=20)
    work = work_folder(open_path(plan.request.artifact)).local

    def find_finished() -> dict[str, os.stat_result]:
        names = [result.stem for result in (work / "preprocess" / "results").glob("*.json")]
        return {name: (work / "draft" / name).stat() for name in names}

    wait_for(lambda: len(find_finished()) > 5)
    process.kill()
    process.wait()
    wait_for(lambda: not find_group_members(process.pid), 30)
    finished, leftover = find_finished(), work / "draft" / ".train.tfrecord.1.tmp"
    leftover.write_bytes(b"of a killed worker")
    assert not plan.manifest.exists() and read_status(attempt) is None
    outcome = large_animals.run(plan)
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    made = {name: (outcome.artifact / name).stat() for name in finished}
    assert [stat.st_ino for stat in made.values()] == [stat.st_ino for stat in finished.values()]
    assert [stat.st_mtime for stat in made.values()] == [
        stat.st_mtime for stat in finished.values()
    ]
    assert {path.name for path in outcome.artifact.parent.iterdir()} == {
        outcome.artifact.name,
        f".{outcome.artifact.name}.lock",
    }
    assert find_damage(plan.manifest, outcome.manifest) == []
    continued = outcome.contents
    shutil.rmtree(outcome.artifact)
    assert large_animals.run(plan).contents == continued


def test_what_a_killed_job_has_written_for_itself_goes_when_its_operator_reaps_it(
    temporary, started
):
    _, process, attempt = started(runner={"workers": 2})
    write_json(attempt.process.local, ProcessIdentity.from_pid(process.pid).to_json())
    process.kill()
    process.wait()
    assert list(temporary.iterdir())
    assert JobHandle(attempt).clean_up()
    assert list(temporary.iterdir()) == []


def test_while_it_runs_the_task_log_gets_elements_rate_and_eta(started):
    """An operator writes the text of each moment into the log of its task."""
    _, process, attempt = started()
    assert process.wait(240) == 0
    lines = [str(moment) for moment in ProgressReader(attempt.progress).read_new()]
    assert any(
        re.fullmatch(r"preprocess \d+/200 images  [\d.]+ images/s  ETA \d+ s  rejected 0", line)
        for line in lines
    ), lines
    assert lines[-1].startswith("preprocess 200/200 images")


@pytest.mark.faults
def test_a_second_job_for_the_same_artifact_waits_for_the_first(large_animals, started):
    """F20: a second Airflow that met the lock of a long training failed after three tries."""
    plan, process, _ = started()
    large_animals.check_that_a_second_run_waits(plan, process)
    assert process.wait(240) == 0
    assert plan.manifest.exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_cancelled_job_ends_at_once_with_everything_it_started(
    large_animals, started, wait_for, workers
):
    plan, process, attempt = started(runner={"workers": workers})
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(60) == ExitCode.CANCELLED, attempt.log.local.read_text()
    assert read_status(attempt).exit_code is ExitCode.CANCELLED
    wait_for(lambda: not find_group_members(process.pid), 30)
    assert not plan.manifest.exists()
    assert [
        path.name
        for path in plan.manifest.parent.parent.local.iterdir()
        if path.name.endswith(".staging")
    ] == []


def test_a_dead_worker_process_is_noticed(large_animals, started, wait_for):
    plan, process, attempt = started(runner={"workers": 2})
    [worker, _] = find_workers(process)
    worker.kill()
    assert process.wait(60) == ExitCode.RETRY
    assert "a worker process died" in read_status(attempt).message
    wait_for(lambda: not find_group_members(process.pid), 30)


def test_workers_die_with_their_job(started, wait_for):
    _, process, _ = started(runner={"workers": 2})
    assert len(find_workers(process)) == 2
    process.kill()
    process.wait()
    wait_for(lambda: not find_group_members(process.pid), 30)


def test_a_full_disk_is_a_reason_to_retry(pipeline, encode):
    """A limit on the size of files stands for the full disk."""
    for index in range(20):
        pipeline.add(
            f"{'cat' if index % 2 else 'dog'}/{index}.png", encode(300, 300, 3, seed=index)
        )
    plan = pipeline.plan(stages=["decode"], shards=1)
    attempt = pipeline.request(plan)
    limit = (1_000_000, 1_000_000)
    with open(attempt.log.local, "wb") as log:
        code = subprocess.call(
            [sys.executable, "-m", "beam_jobs.__main__", "--request", str(attempt.request)],
            stdout=log,
            stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
        )
    assert code == ExitCode.RETRY, attempt.log.local.read_text()
    assert "Free disk space or repair the disk, then retry" in read_status(attempt).message
    assert not plan.manifest.exists()


def test_the_log_is_short_and_ours(animals):
    """Beam warns of missing cloud libraries, and a worker process tells its life;
    neither is for the reader of a task log."""
    process, attempt = animals.start(animals.plan(runner={"workers": 2}))
    assert process.wait(240) == 0
    lines = attempt.log.local.read_text().splitlines()
    assert [line.split(" ", 4)[-1] for line in lines] == [
        "60 files, 2 classes, 9 shards",
        lines[-1].split(" ", 4)[-1],
    ], lines
    assert "0 rejected" in lines[-1]
