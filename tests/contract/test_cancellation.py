from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from pipeline_ops.contract.cancellation import (
    TaskInstanceRef,
    find_cancellation_reason,
    monitor_cancellation,
    read_cancellation_reason,
    request_cancellation,
)
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.errors import Cancelled, DataError
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.processes import find_group_members


def make_ref(task_instance: str, max_tries: int, clear_number: int) -> TaskInstanceRef:
    return TaskInstanceRef(
        task_instance=task_instance, max_tries=max_tries, clear_number=clear_number
    )


FIRST, RETRY = make_ref("1", 2, 0), make_ref("2", 2, 0)
CLEARED = "its task was cleared in Airflow"


@pytest.mark.parametrize(
    "now, state, why",
    [
        (FIRST, "running", None),
        (FIRST, "deferred", None),
        (FIRST, "scheduled", None),  # its trigger has fired, and it waits for a worker
        (FIRST, "queued", None),
        (RETRY, "up_for_retry", None),  # its worker was killed
        (RETRY, "running", None),  # the next try, before it has claimed the job
        (RETRY, None, None),  # an executor has lost it
        (make_ref("1", 2, 1), "deferred", None),  # another task of the run was cleared
        (FIRST, "failed", "its task is failed in Airflow"),
        (FIRST, "success", "its task is success in Airflow"),
        (FIRST, "removed", "its task is removed in Airflow"),
        (FIRST, "restarting", "its task is restarting in Airflow"),  # cleared while it was running
        (RETRY, "failed", "its task is failed in Airflow"),
        (make_ref("2", 3, 0), None, CLEARED),  # and the run left as it was
        (make_ref("2", 3, 1), "running", CLEARED),
        (make_ref("2", 2, 1), "up_for_retry", CLEARED),  # while it was running
        (None, None, "its task is no longer in Airflow"),
    ],
)
def test_a_job_is_wanted_until_its_task_instance_or_another_try_has_ended_or_was_cleared(
    now, state, why
):
    assert find_cancellation_reason(FIRST, now, state) == why


JOB = """
import signal, subprocess, sys, time
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.cancellation import monitor_cancellation
from pipeline_ops.storage.open_store import open_root
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with monitor_cancellation(Attempt(open_root(sys.argv[1]))):
    child = subprocess.Popen(["sleep", "600"])
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def attempt(tmp_path) -> Attempt[StorePath]:
    """The folder of a job, with its request."""
    attempt = Attempt(open_root(tmp_path))
    attempt.request.write(b"{}")
    return attempt


@pytest.mark.parametrize("manner", ["plain", "deaf"])
def test_a_process_that_is_told_to_end_takes_its_whole_group_along(attempt, tmp_path, manner):
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, str(tmp_path), manner],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert job.stdout.readline() == b"up\n"
    assert len(find_group_members(job.pid)) == 2
    request_cancellation(attempt, "no longer needed")
    assert job.wait(60) < 0
    deadline = time.monotonic() + 60
    while find_group_members(job.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_who_was_told_to_end_before_it_began_does_not_begin(attempt):
    assert read_cancellation_reason(attempt) is None
    request_cancellation(attempt, "no longer needed")
    with pytest.raises(Cancelled, match="no longer needed"), monitor_cancellation(attempt):
        os.abort()


def test_a_block_that_ends_well_is_left_alone(attempt):
    with monitor_cancellation(attempt):
        pass
    request_cancellation(attempt, "too late")
    time.sleep(1)


def test_a_cancellation_goes_into_no_folder_but_that_of_a_job(attempt, tmp_path):
    """F8."""
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    for name in ("missing", "other"):
        with pytest.raises(DataError, match=f"{name} is not the folder of a job"):
            request_cancellation(Attempt(attempt.folder / name), "no longer needed")
    attempt.request.local.rename(tmp_path / "other" / "request.json")
    with pytest.raises(DataError, match="link/request.json is a link or is reached through one"):
        request_cancellation(Attempt(attempt.folder / "link"), "no longer needed")
    assert os.listdir(tmp_path / "other") == ["request.json"]
