"""A job as its operator holds it: found again, ended, and ended even before it has begun. The process under it is real, and does nothing."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import TaskDeferralTimeout

from pipeline_ops.contracts.errors import ExitCode, MachineError
from pipeline_ops.contracts.files import write_json
from pipeline_ops.contracts.fingerprint import Fingerprint
from pipeline_ops.contracts.layout import Layout
from pipeline_ops.contracts.plan import JobPlan
from pipeline_ops.contracts.processes import ProcessIdentity, group_members, start_detached
from pipeline_ops.contracts.request import Request, read_status
from pipeline_ops.contracts.wanted import STORE_KEY, ask_to_end, reason_to_end
from pipeline_ops.operators.job_operator import TrainOperator
from pipeline_ops.operators.process import JobHandle, prepare_job, start_job

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"


class Store(dict):
    """Airflow's task state store, as a task sees it."""

    set = dict.__setitem__


@pytest.fixture
def plan(tmp_path) -> JobPlan:
    request = Request(job="train", pipeline="digits", run_id="run", config_file=str(CONFIG), config={}, root=str(tmp_path),
                      artifact=str(tmp_path / "artifact"), fingerprint=Fingerprint(config={}, inputs={}, code={}, versions={}), deadline_seconds=60)
    return JobPlan(request, tmp_path / "artifact" / "manifest.json", is_cached=False, reason="never made before")


@pytest.fixture
def handle(plan, tmp_path) -> JobHandle:
    """Of a job that is not started."""
    return prepare_job(plan, Layout(tmp_path, "digits"), "train")


@pytest.fixture
def process(handle, tmp_path) -> Iterator[ProcessIdentity]:
    """Of the job, and idle."""
    found = ProcessIdentity.of(start_detached(["sleep", "600"], tmp_path / "log").pid)
    write_json(handle.attempt.process, found.to_json())
    yield found
    JobHandle(handle.attempt, "").bury()


def context(handle: JobHandle, max_tries: int = 2) -> dict:
    """Of the second try of a task whose first one has claimed the job."""
    claim = {"task_instance": "first", "max_tries": 2, "clear_number": 0}
    return {"ti": SimpleNamespace(id="second", max_tries=max_tries), "dag_run": SimpleNamespace(conf={}, clear_number=0), "run_id": "run",
            "task_state_store": Store({STORE_KEY: handle.to_json() | {"claim": claim}})}


def test_who_is_killed_before_it_has_started_its_job_leaves_a_folder_that_says_so(handle):
    assert handle.process is None
    assert not handle.is_alive()
    assert handle.outcome().message == f"the job in {handle.attempt.folder} was not started"
    assert JobHandle.from_json(handle.to_json()) == handle


def test_a_job_that_is_ended_before_it_is_started_does_not_begin(plan, handle):
    """As by a person, between the claim and the start."""
    assert handle.end("its task was ended in Airflow")
    late = start_job(plan, handle.attempt)
    deadline = time.monotonic() + 60
    while late.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert read_status(handle.attempt).exit_code == ExitCode.CANCELLED
    assert read_status(handle.attempt).message == "its task was ended in Airflow"


def test_the_next_try_takes_over_the_job_that_still_runs(handle, process):
    task = context(handle)
    assert TrainOperator(config_file=str(CONFIG))._running_already(task) == handle
    assert process.is_alive()
    assert task["task_state_store"][STORE_KEY]["claim"]["task_instance"] == "second"


def test_the_next_try_does_not_follow_a_job_that_is_about_to_end(handle, process):
    """As when Airflow takes a living task for dead: it kills the task, which tells its job to end, and starts the next try at the same time."""
    ask_to_end(handle.attempt, "its task was ended in Airflow")
    assert TrainOperator(config_file=str(CONFIG))._running_already(context(handle)) is None
    assert group_members(process.pid) == []


def test_a_cleared_task_ends_the_job_that_still_runs(handle, process):
    assert TrainOperator(config_file=str(CONFIG))._running_already(context(handle, max_tries=3)) is None
    assert group_members(process.pid) == []
    assert reason_to_end(handle.attempt) == "another try of its task has begun anew"


def test_a_job_that_outlives_its_own_deadline_is_ended_and_not_found_again(handle, process):
    with pytest.raises(TaskDeferralTimeout):
        TrainOperator(config_file=str(CONFIG)).resume_execution("__fail__", {"error": "Trigger timeout"}, context(handle))
    assert group_members(process.pid) == []
    assert reason_to_end(handle.attempt) == "it did not end by its own deadline"


def test_a_job_on_another_host_is_told_to_end_and_no_process_of_this_one_is_taken_for_it(handle, process):
    write_json(handle.attempt.process, dataclasses.replace(process, host="elsewhere").to_json())
    assert handle.is_alive()
    assert handle.outcome() is None
    handle.end("its task was ended in Airflow")
    assert process.is_alive()
    assert reason_to_end(handle.attempt) == "its task was ended in Airflow"
    write_json(handle.attempt.process, process.to_json())


def test_a_job_that_can_not_be_told_is_killed_all_the_same(handle, process):
    handle.attempt.unwanted.mkdir()  # as a full disk would refuse the file
    with pytest.raises(MachineError):
        handle.end("its task was ended in Airflow")
    assert group_members(process.pid) == []
