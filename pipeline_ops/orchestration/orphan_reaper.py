"""Ends the jobs that are no longer needed, from the API server, which receives the users' commands.

Airflow's own hooks are not sufficient. `on_kill` of a task is not called if its worker was killed,
and is cut short if the machine is busy. `on_kill` of a trigger is not called if the triggerer is
down, or had not started the trigger. There is no hook for a task without tries left. Therefore each
job is checked once a second by the rule of `contract/cancellation.py`: unless its task instance
still needs it, it is cancelled.

The API server must be able to reach the storage root, which the pages need as well. Several API
servers do the same work, which does no harm.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
from typing import Any

from sqlalchemy import Row, Select, and_, delete, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from pipeline_ops.contract.cancellation import (
    STORE_KEY,
    StoredJob,
    TaskInstanceRef,
    find_cancellation_reason,
    read_cancellation_reason,
    request_cancellation,
)
from pipeline_ops.contract.layout import Attempt, format_trial_name
from pipeline_ops.contract.request import read_status
from pipeline_ops.errors import DataError, TrainyardError
from pipeline_ops.orchestration.airflow_models import (
    DagRun,
    JobEntry,
    TaskInstance,
    XComModel,
    create_session,
)
from pipeline_ops.orchestration.airflow_runs import find_run_layout
from pipeline_ops.storage.parsing import parse_json_as
from pipeline_ops.storage.store_options import wait_at_most
from pipeline_ops.storage.store_path import StorePath

_CHECK_SECONDS = 1.0
_MAX_REPORTED, _MAX_PROBLEM = 10_000, 2000
_GONE = "its run is no longer in Airflow"
_log = logging.getLogger(__name__)
_tasks = TaskInstance
_Task = tuple[int, str, int]
"""The row of the run, the task and the map index of a task instance."""


@dataclasses.dataclass(frozen=True)
class _Job:
    attempt: Attempt[StorePath]
    owner: TaskInstanceRef


_KnownJobs = dict[tuple[_Task, str], _Job]


def start() -> None:
    """Checks the jobs continuously, in a thread that ends with the process."""
    threading.Thread(target=_check_forever, name="trainyard-orphan-reaper", daemon=True).start()


class OrphanReaper:
    """Ends the jobs that are no longer needed.

    It remembers the jobs of its last check, because deleting a run also deletes the entries of its
    jobs. In Airflow 3.2, an entry is also gone from the begin of a try until its task has followed
    the job. It remembers the problems that it has reported, too. Data of a job are not trusted, and
    a problem with one job does not affect the others.

    Args:
      entries: the table with the tasks' entries about their jobs.
    """

    def __init__(self, entries: Any = JobEntry) -> None:
        self._entries = entries
        self._time = entries.timestamp if entries is XComModel else entries.updated_at
        self._known: _KnownJobs = {}
        """Each job, by the task and the value of the entry that names it."""
        self._reported: dict[object, str] = {}
        """The last problem that was logged, by row or folder."""

    def check_jobs(self, session: Session) -> None:
        """Ends the jobs that are not needed now, and forgets them."""
        rows = session.execute(_select_jobs(self._entries, self._time)).all()
        known: _KnownJobs = {}
        for row in rows:
            try:
                self._check_job(row, session, known)
            except SQLAlchemyError:
                raise
            except Exception as error:  # any error: it must not keep the other jobs alive
                self._report(
                    _get_task(row),
                    f"cannot check the job of {row.task_id} in {row.dag_id}, {row.run_id}: "
                    f"{type(error).__name__}: {error}",
                )
        values = {_get_task(row): _get_value(row) for row in rows}
        still_known = {job.attempt.folder for job in known.values()}
        for (task, value), job in self._known.items():
            if values.get(task) != value and job.attempt.folder not in still_known:
                reason = _GONE if task in values else _find_end_reason(job, task, session)
                if reason is None:
                    known[task, value] = job
                else:
                    self._request_end(job.attempt, reason)
        self._known = known

    def _check_job(self, row: Row[Any], session: Session, known: _KnownJobs) -> None:
        key = _get_task(row), _get_value(row)
        stored = parse_json_as(StoredJob, key[1], f"{STORE_KEY} in Airflow's database")
        attempt = (
            self._known[key].attempt
            if key in self._known
            else _find_attempt(row, stored.attempt, session)
        )
        known[key] = _Job(attempt, stored.owner)
        reason = find_cancellation_reason(stored.owner, _read_current_instance(row), row.state)
        if reason and self._request_end(attempt, reason):
            entries = self._entries
            session.execute(
                delete(entries).where(
                    entries.key == STORE_KEY,
                    entries.dag_run_id == row.dag_run_id,
                    entries.task_id == row.task_id,
                    entries.map_index == row.map_index,
                    self._time == row.time,
                )
            )  # the next try may have written its own job there
            del known[key]

    def _request_end(self, attempt: Attempt[StorePath], reason: str) -> bool:
        """Returns whether the job needs no more work: it has ended, or was asked to end."""
        problem = f"cannot cancel the job in {attempt.folder} ({reason})"
        try:
            attempt.request.read_range(0, 1)
            if not self._has_ended(attempt) and read_cancellation_reason(attempt) is None:
                request_cancellation(attempt, reason)
                _log.info("requested the end of the job in %s: %s", attempt.folder, reason)
        except FileNotFoundError:
            self._report(
                attempt.folder,
                f"{problem}: the API server cannot find its request. Give it access to the storage "
                "root.",
            )
            return False
        except (TrainyardError, OSError) as error:
            self._report(attempt.folder, f"{problem}: {error}")
            return False
        return True

    def _has_ended(self, attempt: Attempt[StorePath]) -> bool:
        """Returns whether the job has written its status. An unreadable status counts as none."""
        try:
            return read_status(attempt) is not None
        except DataError as error:
            self._report(attempt.status, str(error))
            return False

    def _report(self, record: object, problem: str) -> None:
        """Logs a problem once for each record, and not every second."""
        if self._reported.get(record) != problem:
            if len(self._reported) >= _MAX_REPORTED:
                self._reported.clear()
            self._reported[record] = problem
            _log.error("%s", problem[:_MAX_PROBLEM])


def _find_attempt(row: Row[Any], name: str, session: Session) -> Attempt[StorePath]:
    """The attempt of a job, from the locations of the pipeline and the task instance.

    The row is not trusted to name the folder. Raises TrainyardError: there is no such DAG or
    attempt.
    """
    layout = find_run_layout(row.dag_id, row.run_id, session)
    task = row.task_id if row.map_index < 0 else format_trial_name(row.map_index)
    return layout.attempt(row.run_id, task, name)


def _read_current_instance(row: Row[Any]) -> TaskInstanceRef | None:
    """The present task instance of a job. None if it no longer exists."""
    return row.instance and TaskInstanceRef(
        task_instance=str(row.instance), max_tries=row.max_tries, clear_number=row.clear_number
    )


def _get_task(row: Row[Any]) -> _Task:
    return row.dag_run_id, row.task_id, row.map_index


def _get_value(row: Row[Any]) -> str:
    """The value of an entry, which a user may have replaced by any other JSON."""
    return row.value if isinstance(row.value, str) else json.dumps(row.value)


def _find_end_reason(job: _Job, task: _Task, session: Session) -> str | None:
    """The reason why a task without an entry no longer needs its job. None if it needs the job."""
    statement: Select[*tuple[Any, ...]] = (
        select(_tasks.id.label("instance"), _tasks.state, _tasks.max_tries, DagRun.clear_number)
        .join(DagRun, and_(DagRun.dag_id == _tasks.dag_id, DagRun.run_id == _tasks.run_id))
        .where(DagRun.id == task[0], _tasks.task_id == task[1], _tasks.map_index == task[2])
    )
    found = session.execute(statement).one_or_none()
    if found is None:
        return _GONE
    return find_cancellation_reason(job.owner, _read_current_instance(found), found.state)


def _select_jobs(entries: Any, time_written: Any) -> Select[*tuple[Any, ...]]:
    """Selects the jobs that a task owns and that still have an entry.

    Each comes with the present state of its task instance and run.
    """
    same_task = and_(
        _tasks.dag_id == entries.dag_id,
        _tasks.run_id == entries.run_id,
        _tasks.task_id == entries.task_id,
        _tasks.map_index == entries.map_index,
    )
    return (
        select(
            entries.value,
            time_written.label("time"),
            entries.dag_run_id,
            entries.dag_id,
            entries.run_id,
            entries.task_id,
            entries.map_index,
            _tasks.id.label("instance"),
            _tasks.state,
            _tasks.max_tries,
            DagRun.clear_number,
        )
        .join(DagRun, DagRun.id == entries.dag_run_id)
        .outerjoin(_tasks, same_task)
        .where(entries.key == STORE_KEY)
    )


def _check_forever() -> None:
    reaper, is_failing = OrphanReaper(), False
    while True:
        time.sleep(_CHECK_SECONDS)
        try:
            with create_session() as session, wait_at_most(0):
                reaper.check_jobs(session)
        except Exception:  # the database may be down; the next check finds the missed jobs
            if not is_failing:
                _log.exception("cannot check the jobs. The next check is in a second.")
            is_failing = True
        else:
            is_failing = False
