"""The orphan reaper on a real Airflow database. Inside a running Airflow it is in
tests/cli/test_durable.py."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from typing import Any

import pytest
from airflow_database import DAG, RUN
from sqlalchemy import delete, select

from pipeline_ops.contract.cancellation import STORE_KEY, read_cancellation_reason
from pipeline_ops.contract.request import Status, write_status
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ExitCode


@dataclasses.dataclass(frozen=True)
class Entries:
    """A table of Airflow in which tasks keep the entries about their jobs."""

    table: Any

    def write(self, value: object, task: str = "train") -> None:
        self.write_raw(json.dumps(value), task)

    def write_raw(self, value: object, task: str) -> None:
        from pipeline_ops.orchestration.airflow_models import DagRun, create_session

        self.delete(task)
        with create_session() as session:
            run = DagRun.find_duplicate(DAG, RUN, session=session)
            names = {"dag_id": DAG, "run_id": RUN, "task_id": task, "map_index": -1}
            entry = self.table(dag_run_id=run.id, key=STORE_KEY, value=value, **names)
            session.add(entry)

    def read(self) -> dict | None:
        from pipeline_ops.orchestration.airflow_models import create_session

        with create_session() as session:
            value = session.scalar(select(self.table.value).where(*self._match("train")))
        return value and json.loads(value)

    def delete(self, task: str = "train") -> None:
        from pipeline_ops.orchestration.airflow_models import create_session

        with create_session() as session:
            session.execute(delete(self.table).where(*self._match(task)))

    def _match(self, task: str) -> tuple:
        return self.table.run_id == RUN, self.table.task_id == task, self.table.key == STORE_KEY


@pytest.fixture(params=["task_state_store", "xcom"])
def entries(request, airflow_folder) -> Entries:
    """The place of the entries: in Airflow 3.3 and in Airflow 3.2, which has XComs only."""
    from pipeline_ops.orchestration.airflow_models import JobEntry, XComModel

    if request.param == "xcom":
        return Entries(XComModel)
    if JobEntry is XComModel:
        pytest.skip("this Airflow has no task state store")
    return Entries(JobEntry)


@pytest.fixture
def check_jobs(entries):
    """One check of an orphan reaper that remembers the earlier checks."""
    from pipeline_ops.orchestration.airflow_models import DagRun, create_session
    from pipeline_ops.orchestration.orphan_reaper import OrphanReaper

    reaper = OrphanReaper(entries.table)

    def once(of_a_deleted_run: bool = False) -> None:
        with create_session() as session:
            if of_a_deleted_run:
                session.execute(delete(DagRun).where(DagRun.run_id == RUN))
            reaper.check_jobs(session)
            if of_a_deleted_run:
                session.rollback()

    yield once
    entries.delete()
    once()


@pytest.fixture
def job(run_writer, set_states, entries):
    """The job of `train`, which is running, in a folder of its own."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    set_states("running", preprocess="success", train="running")
    with create_session() as session:
        is_train = (TaskInstance.run_id == RUN, TaskInstance.task_id == "train")
        task = session.scalar(select(TaskInstance).where(*is_train))
        claim = {"task_instance": str(task.id), "max_tries": task.max_tries}
        claim["clear_number"] = task.dag_run.clear_number
    attempt = run_writer.layout.attempt(RUN, "train", "attempt-0123abcd")
    attempt.request.write(b"{}")
    entries.write({"attempt": attempt.folder.name, "owner": claim})
    return attempt


@pytest.mark.parametrize("state", ["running", "deferred", "up_for_retry"])
def test_the_job_of_an_unfinished_task_is_left_alone(check_jobs, job, set_states, state, entries):
    set_states("running", train=state)
    check_jobs()
    check_jobs()
    assert read_cancellation_reason(job) is None
    assert entries.read()["attempt"] == job.folder.name


@pytest.mark.parametrize("state", ["failed", "success", "restarting", "removed"])
def test_the_job_of_a_task_that_has_ended_is_told_to_end_and_forgotten(
    check_jobs, job, set_states, state, entries
):
    set_states("running", train=state)
    check_jobs()
    assert read_cancellation_reason(job) == f"its task is {state} in Airflow"
    assert entries.read() is None


def test_a_job_that_has_ended_by_itself_is_only_forgotten(check_jobs, job, set_states, entries):
    write_status(job, Status(exit_code=ExitCode.SUCCESS, manifest="m"))
    set_states("success", train="success")
    check_jobs()
    assert read_cancellation_reason(job) is None
    assert entries.read() is None


def test_the_job_of_a_deleted_run_is_told_to_end(check_jobs, job):
    check_jobs()
    check_jobs(of_a_deleted_run=True)
    assert read_cancellation_reason(job) == "its run is no longer in Airflow"


@pytest.mark.parametrize("state", ["running", "failed"])
def test_a_job_without_an_entry_is_needed_as_long_as_its_task_needs_it(
    check_jobs, job, set_states, entries, state
):
    """In Airflow 3.2, each new try begins with the removal of the task's XComs."""
    check_jobs()
    entries.delete()
    set_states("running", train=state)
    check_jobs()
    check_jobs()
    reason = "its task is failed in Airflow" if state == "failed" else None
    assert read_cancellation_reason(job) == reason


def test_the_job_of_the_next_try_is_not_taken_for_that_of_the_last(check_jobs, job, entries):
    check_jobs()
    write_status(job, Status(exit_code=ExitCode.RETRY, message="killed"))
    entries.write(entries.read() | {"attempt": "attempt-11111111"})
    (job.folder.parent / "attempt-11111111" / "request.json").write(b"{}")
    check_jobs()
    assert read_cancellation_reason(job) is None
    assert entries.read()["attempt"] == "attempt-11111111"


def test_a_folder_out_of_reach_is_named(check_jobs, job, set_states, caplog):
    mounted = job.folder.local.rename(job.folder.local.with_name("elsewhere"))
    set_states("running", train="failed")
    check_jobs()
    check_jobs()
    message = (
        f"cannot cancel the job in {job.folder} (its task is failed in Airflow): "
        "the API server cannot find its request. Give it access to the storage root."
    )
    assert caplog.text.count(message) == 1
    assert not job.folder.local.exists()
    mounted.rename(job.folder.local)
    check_jobs()
    assert read_cancellation_reason(job) == "its task is failed in Airflow"


def test_a_value_that_it_can_not_read_does_no_harm_to_the_others(
    check_jobs, job, set_states, caplog, entries
):
    entries.write("s3://bucket/reference", "preprocess")
    set_states("running", train="failed")
    check_jobs()
    entries.delete("preprocess")
    assert caplog.text.count("cannot check the job of") == 1
    assert read_cancellation_reason(job) == "its task is failed in Airflow"


HOSTILE = {
    "another folder": "/etc",
    "a way up": "../../../../victim",
    "a name of another kind": "train",
    "an empty name": "",
    "a long name": "attempt-" + "0" * 10_000,
    "no text": 7,
    "a list": ["attempt-0123abcd"],
}


@pytest.mark.parametrize("attempt", HOSTILE.values(), ids=HOSTILE)
def test_nothing_is_written_where_a_stored_value_points(
    check_jobs, job, set_states, tmp_path, caplog, attempt, entries
):
    """F8: the API server wrote `cancellation.json` into any folder that a user had put into the
    task state store."""
    victim = tmp_path / "victim"
    victim.mkdir()
    entries.write(entries.read() | {"attempt": str(victim) if attempt == "/etc" else attempt})
    set_states("running", train="failed")
    check_jobs()
    check_jobs()
    assert list(victim.iterdir()) == []
    assert caplog.text.count("cannot check the job of") == 1


def test_no_link_below_the_storage_root_leads_the_api_server_out(
    check_jobs, job, set_states, tmp_path, caplog
):
    """F8."""
    victim = tmp_path / "victim"
    victim.mkdir()
    shutil.rmtree(job.folder.local)
    job.folder.local.symlink_to(victim)
    set_states("running", train="failed")
    check_jobs()
    assert list(victim.iterdir()) == []
    assert "cannot cancel the job" in caplog.text and "link" in caplog.text


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"exit_code": 12345}', b"\xff", b"[" * 100_000])
def test_one_damaged_status_is_one_error_and_the_job_is_told_to_end(
    check_jobs, job, set_states, caplog, content, entries
):
    """F8: with one such file, no cancelled job of any pipeline was ended."""
    job.status.write(content)
    set_states("running", train="failed")
    check_jobs()
    check_jobs()
    assert caplog.text.count(f"{job.status}: not a valid Status") == 1
    assert read_cancellation_reason(job) == "its task is failed in Airflow"
    assert entries.read() is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        0,
        "x",
        [],
        {},
        {"attempt": "attempt-0123abcd"},
        {"attempt": "attempt-0123abcd", "owner": None},
        {
            "attempt": "attempt-0123abcd",
            "owner": {"task_instance": [], "max_tries": 10**30, "clear_number": 0},
        },
    ],
)
def test_a_stored_value_of_any_kind_is_one_error_at_its_place(
    check_jobs, job, set_states, caplog, value, entries
):
    """F8. The other job is ended, and each record has an error of its own."""
    for task in ("preprocess", "evaluate"):
        entries.write(value, task)
    set_states("running", train="failed")
    check_jobs()
    check_jobs()
    for task in ("preprocess", "evaluate"):
        entries.delete(task)
        assert caplog.text.count(f"cannot check the job of {task} in {DAG}, {RUN}: ") == 1
    assert read_cancellation_reason(job) == "its task is failed in Airflow"


def test_an_xcom_of_any_json_is_one_error_at_its_place(airflow_folder, caplog):
    from pipeline_ops.orchestration.airflow_models import XComModel, create_session
    from pipeline_ops.orchestration.orphan_reaper import OrphanReaper

    entries, reaper = Entries(XComModel), OrphanReaper(XComModel)
    entries.write_raw([{"attempt": "attempt-0123abcd"}], "preprocess")
    with create_session() as session:
        reaper.check_jobs(session)
        reaper.check_jobs(session)
    entries.delete("preprocess")
    assert caplog.text.count("cannot check the job of preprocess") == 1


def test_a_job_whose_row_was_changed_by_hand_is_ended(check_jobs, job, entries):
    """F8: the reaper ends a job that it can no longer find."""
    check_jobs()
    entries.write({"attempt": "nonsense"})
    check_jobs()
    assert read_cancellation_reason(job) == "its run is no longer in Airflow"


def test_it_begins_with_the_api_server_and_with_nothing_else(airflow_folder):
    """Runs in its own process, because it never ends."""
    script = """
import asyncio, threading
from pipeline_ops.orchestration.ui.plugin import TrainyardPlugin
names = lambda: [thread.name for thread in threading.enumerate()]
[entry] = TrainyardPlugin.fastapi_root_middlewares
calls = []
async def app(scope, receive, send): calls.append(scope["type"])
wrapped = entry["middleware"](app, *entry["args"], **entry["kwargs"])
asyncio.run(wrapped({"type": "http"}, None, None))
assert "trainyard-orphan-reaper" not in names()
asyncio.run(wrapped({"type": "lifespan"}, None, None))
assert "trainyard-orphan-reaper" in names()
assert calls == ["http", "lifespan"]
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=CODE_ROOT)
