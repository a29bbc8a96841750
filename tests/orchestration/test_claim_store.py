"""A task's entry about its job in an Airflow without a task state store, as Airflow 3.2 is one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from config_files import write_config
from task_contexts import make_context

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.cancellation import STORE_KEY, StoredJob, read_cancellation_reason
from pipeline_ops.contract.layout import Layout
from pipeline_ops.orchestration.job_handle import JobHandle
from pipeline_ops.orchestration.task_run import (
    TaskRun,
    claim_job,
    find_claimed_job,
    find_running_job,
)
from pipeline_ops.places.local import LocalPlace

PLACE = LocalPlace()


@pytest.fixture
def xcoms(monkeypatch) -> list:
    """The messages of the task to Airflow, which would need its supervisor."""
    from airflow.sdk.execution_time import task_runner

    sent = []
    supervisor = SimpleNamespace(send=lambda message=None, msg=None: sent.append(message or msg))
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    return sent


@pytest.fixture
def layout(tmp_path) -> Layout:
    config = load_config(write_config(tmp_path, {"storage.root": "storage"}))
    return Layout(config.root, config.pipeline)


def make_run(tmp_path, number: int, max_tries: int = 2) -> TaskRun:
    """The run as the try of that number sees it."""
    task = {"dag_id": "digits", "task_id": "train", "map_index": -1, "max_tries": max_tries}
    context = make_context({}, "manual", id=f"try-{number}", **task)
    del context["task_state_store"]
    return TaskRun(load_config(tmp_path / "digits.yaml"), context)


@pytest.fixture
def job(layout, xcoms, tmp_path) -> JobHandle:
    """The job that the first try has claimed. It counts as alive, because it is elsewhere."""
    attempt = layout.attempt("manual", "train", "attempt-0123abcd")
    attempt.request.write(b"{}")
    attempt.process.write(b'{"host": "elsewhere", "pid": 7, "start_ticks": 7}')
    handle = JobHandle(attempt, PLACE)
    claim_job(make_run(tmp_path, 1), handle)
    return handle


def test_a_claim_is_an_xcom_for_the_api_server(job, xcoms):
    [message] = xcoms
    assert (message.dag_id, message.run_id, message.task_id) == ("digits", "manual", "train")
    assert (message.map_index, message.key) == (-1, STORE_KEY)
    stored = StoredJob.model_validate_json(message.value)
    assert (stored.attempt, stored.owner.task_instance) == ("attempt-0123abcd", "try-1")


def test_the_next_try_follows_the_job_though_airflow_has_removed_the_xcom(job, xcoms, tmp_path):
    xcoms.clear()
    assert find_running_job(make_run(tmp_path, 2), "train", PLACE).attempt == job.attempt
    [message] = xcoms
    assert StoredJob.model_validate_json(message.value).owner.task_instance == "try-2"
    assert read_cancellation_reason(job.attempt) is None


def test_a_cleared_task_ends_the_job(job, tmp_path):
    assert find_running_job(make_run(tmp_path, 2, max_tries=3), "train", PLACE) is None
    assert read_cancellation_reason(job.attempt) == "another try of its task has begun"


def test_a_task_without_a_claim_has_no_job(layout, tmp_path):
    assert find_running_job(make_run(tmp_path, 1), "train", PLACE) is None


@pytest.mark.parametrize("content", [b"{", b"null", b'{"attempt": "/etc", "owner": {}}', b"\xff"])
def test_a_damaged_file_makes_the_task_end_its_newest_job(job, layout, tmp_path, content):
    layout.claim("manual", "train").write(content)
    assert find_claimed_job(make_run(tmp_path, 2), "train", PLACE)[0].attempt == job.attempt
    assert find_running_job(make_run(tmp_path, 2), "train", PLACE) is None
    assert read_cancellation_reason(job.attempt) == "another try of its task has begun"


def test_a_claim_is_for_its_owner_only(job, layout):
    assert layout.claim("manual", "train").local.stat().st_mode & 0o777 == 0o600


def test_the_tries_of_two_trials_have_claims_of_their_own(job, layout, tmp_path):
    assert find_claimed_job(make_run(tmp_path, 2), "trial-000", PLACE) == (None, None)
