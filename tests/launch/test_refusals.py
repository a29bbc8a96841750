"""Train jobs that cannot continue end in time and leave no process.

Their message names the cause, and their exit code decides whether to retry.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest
from launch.running import starting
from processes import Stopwatch

from pipeline_ops.contract.manifest import read_manifest, write_manifest
from pipeline_ops.errors import ExitCode
from pipeline_ops.system.processes import find_group_members, kill_group


@pytest.mark.faults
def test_without_restarts_left_the_job_fails_and_names_the_worker_and_its_log(start):
    job = start(is_held=True, train__max_restarts=0)
    job.wait_until_held()
    os.kill(job.worker("worker 1"), signal.SIGKILL)
    assert job.end() == ExitCode.RETRY
    assert "worker 1 on localhost was killed by signal 9 (SIGKILL)" in job.message()
    assert "worker-1.log" in job.message()
    assert job.survivors() == []
    assert not job.job.folder.local.exists()


def test_sigterm_ends_every_process_within_five_seconds(start):
    job = start(train__epochs=5000)
    job.wait_for_step(10)
    assert (
        len(find_group_members(job.process.pid)) == 5
    )  # launcher, agent, fork server, two workers
    watch = Stopwatch()
    assert kill_group(job.identity, 2.0)
    assert watch.seconds < 5
    # On a busy machine two seconds are too short to save.
    saved, killed = ExitCode.RETRY, -signal.SIGKILL
    assert job.process.wait() in (saved, killed)
    assert job.survivors() == []
    assert not job.job.folder.local.exists()


@pytest.mark.hosts
def test_a_worker_that_never_joins_is_named_within_the_deadline(start):
    job = start(train__epochs=5000, train__heartbeat_timeout_seconds=8, train__max_restarts=0)
    log = job.job.attempt.worker_log("worker 1")
    job.wait_until(lambda: job.forks(log))
    os.kill(job.forks(log)[0], signal.SIGSTOP)
    begin = time.monotonic()
    assert job.end() == ExitCode.RETRY
    assert "worker 1 on localhost has not been seen running for" in job.message()
    assert time.monotonic() - begin < 120, "it must not take the minutes of a start timeout"
    assert job.survivors() == []


@pytest.mark.hosts
def test_no_free_port_is_told_with_the_range_to_widen(start):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        job = start(
            lab={"first_port": port, "last_port": port, "network": "trusted"},
            train__max_restarts=0,
            train__strategy="parameter_server",
            train__workers=1,
            train__parameter_servers=1,
        )
        assert job.end() == ExitCode.RETRY
    assert (
        "host localhost has 0 free ports where 3 are needed. Widen first_port and last_port"
        in job.message()
    )
    assert job.survivors() == []


@pytest.mark.hosts
def test_a_second_job_for_the_same_artifact_waits_for_the_first(start):
    first = start(is_held=True)
    first.wait_until_held()
    second = start("second")
    waiting = second.wait_for(lambda moment: moment.phase == "wait")
    assert f"is held by process {first.process.pid}" in waiting.message
    first.release()
    assert first.end() == ExitCode.SUCCESS
    assert second.end() == ExitCode.SUCCESS
    assert second.message() == "made by another run in the meantime"
    assert second.steps("train") == []


@pytest.mark.hosts
def test_an_error_in_the_config_is_not_tried_again(start):
    job = start(
        train__strategy="tpu", train__workers=1
    )  # only a worker can find out that there is no TPU
    assert job.end() == ExitCode.CONFIG
    assert "train.strategy is tpu, but no TPU was found" in job.message()
    assert job.messages("restart") == []


@pytest.fixture
def copied(dataset, tmp_path) -> Path:
    """A copy of the data set, to damage."""
    return Path(shutil.copytree(Path(dataset).parent, tmp_path / "dataset"))


@pytest.fixture
def start_on_copy(copied, make_job_in, tmp_path, here):
    with starting(make_job_in, str(copied / "manifest.json"), tmp_path / "job", here) as start_job:
        yield start_job


def test_boxes_are_refused_by_a_classifier_before_anything_is_trained(copied, start_on_copy):
    manifest = read_manifest(copied / "manifest.json")
    write_manifest(
        copied, manifest.model_copy(update={"figures": manifest.figures | {"task": "detection"}})
    )
    job = start_on_copy()
    assert job.end() == ExitCode.CONFIG
    assert (
        "the data set is for detection, and train.model digits_cnn is for classification"
        in job.message()
    )


def test_a_damaged_shard_is_named_before_anything_is_trained(copied, start_on_copy):
    shard = copied / "train-00001-of-00004.tfrecord"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 0xFF
    shard.write_bytes(data)
    job = start_on_copy()
    assert job.end() == ExitCode.RETRY
    assert shard.name in job.message()
