from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.errors import Cancelled
from pipeline_ops.jobs.cancellation import (
    TaskInstanceRef,
    ask_to_end,
    reason_to_end,
    while_wanted,
    why_unwanted,
)
from pipeline_ops.system.processes import group_members

FIRST = TaskInstanceRef(task_instance="1", max_tries=2, clear_number=0)
RETRY = TaskInstanceRef(task_instance="2", max_tries=2, clear_number=0)


@pytest.mark.parametrize(
    "now, state",
    [
        (FIRST, "running"),
        (FIRST, "deferred"),
        (FIRST, "scheduled"),  # its trigger has fired, and it waits for a worker
        (FIRST, "queued"),
        (RETRY, "up_for_retry"),  # its worker was killed
        (RETRY, "running"),  # the next try, before it has claimed the job
        (RETRY, None),  # an executor has lost it
        (
            TaskInstanceRef(task_instance="1", max_tries=2, clear_number=1),
            "deferred",
        ),  # another task of the run was cleared
    ],
)
def test_a_job_is_wanted_as_long_as_its_task_instance_or_another_try_of_it_is_unfinished(
    now, state
):
    assert why_unwanted(FIRST, now, state) is None


@pytest.mark.parametrize(
    "now, state, why",
    [
        (FIRST, "failed", "its task is failed in Airflow"),
        (FIRST, "success", "its task is success in Airflow"),
        (FIRST, "removed", "its task is removed in Airflow"),
        (FIRST, "restarting", "its task is restarting in Airflow"),  # cleared while it was running
        (RETRY, "failed", "its task is failed in Airflow"),
        (
            TaskInstanceRef(task_instance="2", max_tries=3, clear_number=0),
            None,
            "its task was cleared in Airflow",
        ),  # and the run left as it was
        (
            TaskInstanceRef(task_instance="2", max_tries=3, clear_number=1),
            "running",
            "its task was cleared in Airflow",
        ),
        (
            TaskInstanceRef(task_instance="2", max_tries=2, clear_number=1),
            "up_for_retry",
            "its task was cleared in Airflow",
        ),  # while it was running
        (None, None, "its task is not in Airflow any more"),
    ],
)
def test_a_job_is_not_wanted_when_its_task_has_ended_or_was_cleared_or_removed(now, state, why):
    assert why_unwanted(FIRST, now, state) == why


JOB = """
import signal, subprocess, sys, time
from pathlib import Path
from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.jobs.cancellation import while_wanted
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with while_wanted(Attempt(Path(sys.argv[1]))):
    child = subprocess.Popen(["sleep", "600"])
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("manner", ["plain", "deaf"])
def test_a_process_that_is_told_to_end_takes_its_whole_group_along(tmp_path, manner):
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, str(tmp_path), manner],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert job.stdout.readline() == b"up\n"
    assert len(group_members(job.pid)) == 2
    ask_to_end(Attempt(tmp_path), "nobody wants it")
    assert job.wait(60) < 0
    deadline = time.monotonic() + 60
    while group_members(job.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_who_was_told_to_end_before_it_began_does_not_begin(tmp_path):
    attempt = Attempt(Path(tmp_path))
    assert reason_to_end(attempt) is None
    ask_to_end(attempt, "nobody wants it")
    with pytest.raises(Cancelled, match="nobody wants it"), while_wanted(attempt):
        os.abort()


def test_a_block_that_ends_well_is_left_alone(tmp_path):
    with while_wanted(Attempt(Path(tmp_path))):
        pass
    ask_to_end(Attempt(Path(tmp_path)), "too late")
    time.sleep(1)
