"""Ends the jobs that are no longer needed, from the API server, which receives the users' commands.

Airflow's own hooks are not sufficient. `on_kill` of a task is not called if its worker was killed,
and is cut short if the machine is busy. `on_kill` of a trigger is not called if the triggerer is
down, or had not started the trigger. There is no hook for a task without tries left. Therefore each
job is checked once a second by the rule of `jobs/cancellation.py`: unless its task instance still
needs it, it is cancelled.

The API server must be able to reach the storage root, which the pages need as well. Several API
servers do the same work, which does no harm.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from sqlalchemy import Row, Select, and_, delete, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from pipeline_ops.airflow_internals import (
    DagRun,
    TaskInstance,
    TaskStateStoreModel,
    create_session,
)
from pipeline_ops.airflow_runs import find_author_config
from pipeline_ops.artifacts.layout import Attempt, Layout, format_trial_name
from pipeline_ops.errors import DataError, TrainyardError
from pipeline_ops.jobs.cancellation import (
    STORE_KEY,
    StoredJob,
    TaskInstanceRef,
    find_cancellation_reason,
    read_cancellation_reason,
    request_cancellation,
)
from pipeline_ops.jobs.request import read_status
from pipeline_ops.storage.parsing import parse_json_as
from pipeline_ops.storage.store_path import StorePath

_CHECK_SECONDS = 1.0
_MAX_REPORTED, _MAX_PROBLEM = 10_000, 2000
_log = logging.getLogger(__name__)
_KnownJobs = dict[tuple[int, str], Attempt]
_jobs, _tasks = TaskStateStoreModel, TaskInstance


def start() -> None:
    """Checks the jobs continuously, in a thread that ends with the process."""
    threading.Thread(target=_check_forever, name="trainyard-orphan-reaper", daemon=True).start()


class OrphanReaper:
    """Ends the jobs that are no longer needed.

    It remembers the jobs of its last check, because deleting a run also deletes the rows of its
    jobs, and it remembers the problems that it has reported. Data of a job are not trusted, and a
    problem with one job does not affect the others.
    """

    def __init__(self) -> None:
        self._known: _KnownJobs = {}
        """The folder of each job, by the row and the value that name it."""
        self._reported: dict[object, str] = {}
        """The last problem that was logged, by row or folder."""

    def check_jobs(self, session: Session) -> None:
        """Ends the jobs that are not needed now, and forgets them."""
        rows = session.execute(_select_jobs()).all()
        known: _KnownJobs = {}
        for row in rows:
            try:
                self._check_job(row, session, known)
            except SQLAlchemyError:
                raise
            except Exception as error:  # any error: it must not keep the other jobs alive
                self._report(
                    row.id,
                    f"cannot check the job of {row.task_id} in {row.dag_id}, {row.run_id}: "
                    f"{type(error).__name__}: {error}",
                )
        present = {(row.id, row.value) for row in rows}
        still_known = {attempt.folder for attempt in known.values()}
        for key, attempt in self._known.items():
            if key not in present and attempt.folder not in still_known:
                self._request_end(attempt, "its run is no longer in Airflow")
        self._known = known

    def _check_job(
        self, row: Row[Any], session: Session, known: dict[tuple[int, str], Attempt]
    ) -> None:
        stored = parse_json_as(StoredJob, row.value, f"{STORE_KEY} in Airflow's task state store")
        key = (row.id, row.value)
        attempt = self._known.get(key) or _find_attempt(row, stored.attempt, session)
        known[key] = attempt
        reason = find_cancellation_reason(stored.owner, _read_current_instance(row), row.state)
        if reason and self._request_end(attempt, reason):
            session.execute(
                delete(_jobs).where(_jobs.id == row.id, _jobs.value == row.value)
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
    """The attempt of a job, from the config of the DAG's author and the task instance.

    The row is not trusted to name the folder.

    Raises:
      TrainyardError: there is no such DAG or attempt, or the config can't be used now.
    """
    config = find_author_config(row.dag_id, row.run_id, session)
    task = row.task_id if row.map_index < 0 else format_trial_name(row.map_index)
    return Layout(config.root, config.pipeline).attempt(row.run_id, task, name)


def _read_current_instance(row: Row[Any]) -> TaskInstanceRef | None:
    """The present task instance of a job. None if it no longer exists."""
    return row.instance and TaskInstanceRef(
        task_instance=str(row.instance), max_tries=row.max_tries, clear_number=row.clear_number
    )


def _select_jobs() -> Select[*tuple[Any, ...]]:
    """Selects the jobs that a task owns and that still have a row.

    Each comes with the present state of its task instance and run.
    """
    same_task = and_(
        _tasks.dag_id == _jobs.dag_id,
        _tasks.run_id == _jobs.run_id,
        _tasks.task_id == _jobs.task_id,
        _tasks.map_index == _jobs.map_index,
    )
    return (
        select(
            _jobs.id,
            _jobs.value,
            _jobs.dag_id,
            _jobs.run_id,
            _jobs.task_id,
            _jobs.map_index,
            _tasks.id.label("instance"),
            _tasks.state,
            _tasks.max_tries,
            DagRun.clear_number,
        )
        .join(DagRun, DagRun.id == _jobs.dag_run_id)
        .outerjoin(_tasks, same_task)
        .where(_jobs.key == STORE_KEY)
    )


def _check_forever() -> None:
    reaper, is_failing = OrphanReaper(), False
    while True:
        time.sleep(_CHECK_SECONDS)
        try:
            with create_session() as session:
                reaper.check_jobs(session)
        except Exception:  # the database may be down; the next check finds the missed jobs
            if not is_failing:
                _log.exception("cannot check the jobs. The next check is in a second.")
            is_failing = True
        else:
            is_failing = False
