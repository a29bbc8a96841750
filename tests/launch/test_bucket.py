"""Training on one host with a bucket as storage root: a host may be lost with its disk."""

from __future__ import annotations

import os
import shutil
import signal

import numpy as np
import pytest
from launch.on_bucket import bucket_jobs, upload_dataset
from launch.running import STEPS_PER_EPOCH, wait_until
from object_servers.s3_server import S3Server

from pipeline_ops.errors import ExitCode


@pytest.fixture(scope="module")
def server():
    with S3Server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.build_environment().items():
            patch.setenv(name, value)
        server.make_bucket("bucket")
        yield server


@pytest.fixture
def start(server, dataset, tmp_path):
    root = f"s3://bucket/{tmp_path.name}"
    with bucket_jobs(
        tmp_path, root, upload_dataset(dataset, root), {"launcher": "local", "cores": 2}
    ) as start_job:
        yield start_job


@pytest.fixture(scope="module")
def here():
    return {"launcher": "local", "cores": 2}


def assert_same_weights(job, undisturbed) -> None:
    theirs = undisturbed.figures()
    mine = job.read_figures()
    assert mine.steps == theirs.steps
    assert mine.weights_digest == theirs.weights_digest
    assert np.isclose(mine.history[-1].metrics["loss"], theirs.history[-1].metrics["loss"])


@pytest.mark.hosts
def test_a_host_that_is_lost_with_its_disk_costs_no_more_than_an_interval(
    start, undisturbed, tmp_path
):
    first = start("lost", is_held=True)
    first.wait_until_held()
    first.kill()
    shutil.rmtree(tmp_path / "lost")
    first.release()
    second = start("other")
    assert second.end().exit_code == ExitCode.SUCCESS, second.read_log()
    [step] = second.read_steps("restored")
    assert step == STEPS_PER_EPOCH
    assert second.read_steps("restored", "worker 1") == [step]
    assert_same_weights(second, undisturbed)
    assert second.work.walk() == [], "the checkpoints are removed with the end of the training"
    assert list((tmp_path / "other" / "trainyard-jobs").glob("*/*/*.npz")) == []


@pytest.mark.hosts
def test_a_stopped_job_stores_its_last_step_before_it_ends(start, tmp_path):
    first = start("lost", train__epochs=3000, train__checkpoint_every_steps=100_000)
    first.wait_until(lambda: (first.read_steps("train") or [0])[-1] > 30)
    os.kill(first.process.pid, signal.SIGTERM)
    assert first.end().exit_code == ExitCode.RETRY
    [step] = first.read_steps("preempted")
    shutil.rmtree(tmp_path / "lost")
    second = start("other", train__epochs=3000, train__checkpoint_every_steps=100_000)
    wait_until(lambda: second.read_steps("restored"), 120, second.read_log)
    assert second.read_steps("restored") == [step]
