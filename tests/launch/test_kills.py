"""A kill -9 of any process of the train job costs seconds, and never the run; nothing is left running."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from launch.running import QUICK, RunningJob, assert_same

from pipeline_ops.contracts.errors import ExitCode
from pipeline_ops.contracts.manifest import read_manifest, write_manifest
from pipeline_ops.contracts.processes import group_members, kill_group
from pipeline_ops.contracts.progress import ProgressReader
from pipeline_ops.contracts.request import read_status


@pytest.fixture
def start(make_job):
    started = []

    def start_job(name="attempt", **overrides):
        started.append(RunningJob(make_job(name, **(QUICK | overrides))))
        return started[-1]

    yield start_job
    for job in started:
        job.put_an_end_to_it()


@pytest.fixture(scope="module")
def undisturbed(dataset, make_job_in, tmp_path_factory):
    """A run that nobody disturbed."""
    job = RunningJob(make_job_in(tmp_path_factory.mktemp("undisturbed"), dataset)("attempt", **QUICK))
    assert job.end() == ExitCode.SUCCESS, job.job.attempt.log.read_text()
    assert job.figures().restarts == 0
    return job


def test_a_worker_that_is_done_does_not_wait_for_peers_that_have_left(start):
    """It would notice ten seconds later that they are gone, and say so in its log."""
    job = start()
    assert job.end() == ExitCode.SUCCESS
    assert "coordination service" not in "".join(job.job.attempt.worker_log(f"worker {worker}").read_text() for worker in range(2))


@pytest.mark.parametrize("worker", [0, 1])
def test_a_killed_worker_restarts_the_gang_and_the_result_is_the_same(start, undisturbed, worker):
    job = start()
    job.wait_for_step(20)
    os.kill(job.worker(f"worker {worker}"), signal.SIGKILL)
    assert job.end() == ExitCode.SUCCESS
    figures = job.figures()
    assert figures.restarts == 1
    assert len(set(figures.worker_weights_digests)) == 1
    assert_same(job, undisturbed)
    messages = [m.message for m in ProgressReader(job.job.attempt.progress).new() if m.phase == "restart"]
    assert f"worker {worker} on localhost was killed by signal 9 (SIGKILL)" in messages[0]
    assert f"worker-{worker}.log" in messages[0]
    assert "first new step" in job.messages("recovered")[0]
    assert job.survivors() == []


def test_sigterm_to_one_worker_stops_all_at_the_same_step_and_the_next_gang_goes_on_there(start, undisturbed):
    job = start()
    job.wait_for_step(20)
    os.kill(job.worker("worker 1"), signal.SIGTERM)
    assert job.end() == ExitCode.SUCCESS
    moments = [m for name in ("worker 0", "worker 1") for m in ProgressReader(job.job.attempt.worker_progress(name)).new()]
    stopped, restored = ({m.done for m in moments if m.phase == phase} for phase in ("preempted", "restored"))
    assert len(stopped) == 1 and restored == stopped, "no step is lost, and none is done twice"
    assert_same(job, undisturbed)


def test_a_killed_preloaded_process_is_started_again(start, undisturbed):
    job = start()
    job.wait_for_step(20)
    os.kill(job.preloaded()[0], signal.SIGKILL)
    assert job.end() == ExitCode.SUCCESS
    assert job.figures().restarts == 1
    assert_same(job, undisturbed)
    assert job.survivors() == []


def test_a_killed_launcher_leaves_nobody_and_the_next_try_goes_on_from_the_checkpoint(start, undisturbed):
    job = start()
    job.wait_for_step(30)
    os.kill(job.process.pid, signal.SIGKILL)
    job.process.wait()
    assert job.survivors() == []
    assert read_status(job.job.attempt) is None
    again = start("second")
    assert again.end() == ExitCode.SUCCESS
    restored = [m for m in ProgressReader(again.job.attempt.progress).new() if m.phase == "restored"]
    assert restored and restored[0].done >= 7
    assert_same(again, undisturbed)


def test_a_hung_worker_is_noticed_and_the_gang_restarted(start):
    job = start(train__step_timeout_seconds=3)
    job.wait_for_step(20)
    os.kill(job.worker("worker 1"), signal.SIGSTOP)
    assert job.end() == ExitCode.SUCCESS
    assert job.figures().restarts == 1


def test_without_restarts_left_the_job_fails_and_names_the_worker_and_its_log(start):
    job = start(train__max_restarts=0)
    job.wait_for_step(20)
    os.kill(job.worker("worker 1"), signal.SIGKILL)
    assert job.end() == ExitCode.RETRY
    message = read_status(job.job.attempt).message
    assert "worker 1 on localhost was killed by signal 9 (SIGKILL)" in message
    assert "worker-1.log" in message
    assert not job.job.folder.exists()


def test_sigterm_ends_every_process_within_five_seconds(start):
    job = start()
    job.wait_for_step(10)
    assert len(group_members(job.process.pid)) == 5  # launcher, agent, preloaded process, two workers
    begin = time.monotonic()
    assert kill_group(job.identity, 2.0)
    assert time.monotonic() - begin < 5
    assert job.process.wait() == ExitCode.RETRY, "what is marked failed is not tried again, whatever its exit code"
    assert job.survivors() == []
    assert not job.job.folder.exists()


def test_a_second_job_for_the_same_artifact_is_refused(start):
    first = start()
    first.wait_for_step(5)
    second = start("second")
    assert second.end() == ExitCode.RETRY
    assert str(first.process.pid) in read_status(second.job.attempt).message
    assert first.end() == ExitCode.SUCCESS


def test_an_error_in_the_config_is_not_tried_again(start):
    job = start(train__strategy="tpu", train__workers=1)  # that there is no TPU, only a worker finds out
    assert job.end() == ExitCode.CONFIG
    assert "train.strategy is tpu, but no TPU was found" in read_status(job.job.attempt).message
    assert not [m for m in ProgressReader(job.job.attempt.progress).new() if m.phase == "restart"]


def test_boxes_are_refused_by_a_classifier_before_anything_is_trained(dataset, make_job_in, tmp_path):
    copy = tmp_path / "dataset"
    shutil.copytree(Path(dataset).parent, copy)
    manifest = read_manifest(copy / "manifest.json")
    write_manifest(copy, manifest.model_copy(update={"figures": manifest.figures | {"task": "detection"}}))
    running = RunningJob(make_job_in(tmp_path / "job", str(copy / "manifest.json"))("attempt", **QUICK))
    assert running.end() == ExitCode.CONFIG
    assert "the data set is for detection, and train.model digits_cnn is for classification" in read_status(running.job.attempt).message


def test_a_damaged_shard_is_named_before_anything_is_trained(dataset, make_job_in, tmp_path):
    copy = tmp_path / "dataset"
    shutil.copytree(Path(dataset).parent, copy)
    shard = copy / "train-00001-of-00004.tfrecord"
    job = make_job_in(tmp_path / "job", str(copy / "manifest.json"))("attempt", **QUICK)
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 0xFF
    shard.write_bytes(data)
    running = RunningJob(job)
    assert running.end() == ExitCode.RETRY
    assert shard.name in read_status(job.attempt).message
