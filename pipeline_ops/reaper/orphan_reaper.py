"""Ends the jobs that are no longer needed, from the API server, which receives the users' commands.

Airflow's own hooks are not sufficient. `on_kill` of a task is not called if its worker was killed,
and is cut short if the machine is busy. `on_kill` of a trigger is not called if the triggerer is
down, or had not started the trigger. There is no hook for a task without tries left. Therefore each
job is checked once a second by the rule of `jobs/cancellation.py`: unless its task instance still
needs it, it is ordered to end.

The API server must be able to reach the storage root, which the pages need as well. Several API
servers do the same work, which does no harm.
"""

from __future__ import annotations

import logging
import threading
import time

from airflow.models.dagrun import DagRun
from airflow.models.task_state_store import TaskStateStoreModel
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import Row, Select, and_, delete, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from pipeline_ops.airflow_runs import find_author_config
from pipeline_ops.artifacts.layout import Attempt, Layout, trial_name
from pipeline_ops.errors import DataError, TrainyardError
from pipeline_ops.jobs.cancellation import (
    STORE_KEY,
    StoredJob,
    TaskInstanceRef,
    ask_to_end,
    reason_to_end,
    why_unwanted,
)
from pipeline_ops.jobs.request import read_status
from pipeline_ops.storage.parsing import parse_json_as
from pipeline_ops.storage.safe_paths import folder_below

_LOOK_SECONDS = 1.0
_MAX_REPORTED, _MAX_PROBLEM = 10_000, 2000
_log = logging.getLogger(__name__)
_jobs, _tasks = TaskStateStoreModel, TaskInstance


def start() -> None:
    """Checks the jobs continuously, in a thread that ends with the process."""
    threading.Thread(target=_look_for_ever, name="trainyard-custodian", daemon=True).start()


class Custodian:
    """Ends the jobs that are no longer wanted.

    It remembers the jobs of its last look, because deleting a run also deletes the rows of its
    jobs, and it remembers the problems that it has reported. Data of a job are not trusted, and a
    problem with one job does not affect the others.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], Attempt] = {}
        """The folder of each job, by the row and the value that name it."""
        self._reported: dict[object, str] = {}
        """The last problem that was logged, by row or folder."""

    def look(self, session: Session) -> None:
        """Ends the jobs that are not wanted now, and forgets them."""
        rows, known = session.execute(_every_job()).all(), {}
        for row in rows:
            try:
                self._look_at(row, session, known)
            except SQLAlchemyError:
                raise
            except Exception as error:  # any error: it must not keep the other jobs alive
                self._report(
                    row.id,
                    f"The job of {row.task_id} in {row.dag_id}, {row.run_id}, "
                    f"can't be looked after: {type(error).__name__}: {error}",
                )
        present = {(row.id, row.value) for row in rows}
        still_known = {attempt.folder for attempt in known.values()}
        for place, attempt in self._known.items():
            if place not in present and attempt.folder not in still_known:
                self._end(attempt, "its run is not in Airflow any more")
        self._known = known

    def _look_at(self, row: Row, session: Session, known: dict[tuple[int, str], Attempt]) -> None:
        stored = parse_json_as(StoredJob, row.value, f"{STORE_KEY} in Airflow's task state store")
        place = (row.id, row.value)
        attempt = self._known.get(place) or _attempt_of(row, stored.attempt, session)
        known[place] = attempt
        reason = why_unwanted(stored.claim, _now(row), row.state)
        if reason and self._end(attempt, reason):
            session.execute(
                delete(_jobs).where(_jobs.id == row.id, _jobs.value == row.value)
            )  # the next try may have written its own job there
            del known[place]

    def _end(self, attempt: Attempt, reason: str) -> bool:
        """Returns whether the job needs no more work: it has ended, or has the order to end."""
        must_end = f"The job in {attempt.folder} has to end ({reason}), and"
        try:
            with folder_below(*attempt.below_root(attempt.folder)):
                pass
            if not self._has_ended(attempt) and reason_to_end(attempt) is None:
                ask_to_end(attempt, reason)
                _log.info("The job in %s is told to end: %s", attempt.folder, reason)
        except FileNotFoundError:
            self._report(
                attempt.folder,
                f"{must_end} its folder is not in reach of the API server, so it can't be told",
            )
            return False
        except (TrainyardError, OSError) as error:
            self._report(attempt.folder, f"{must_end} can't be told: {error}")
            return False
        return True

    def _has_ended(self, attempt: Attempt) -> bool:
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


def _attempt_of(row: Row, name: str, session: Session) -> Attempt:
    """The attempt of a job, from the config of the DAG's author and the task instance.

    The row is not trusted with the place.

    Raises:
      TrainyardError: there is no such DAG or attempt, or the config can't be used now.
    """
    config = find_author_config(row.dag_id, row.run_id, session)
    task = row.task_id if row.map_index < 0 else trial_name(row.map_index)
    return Layout(config.root, config.pipeline).attempt(row.run_id, task, name)


def _now(row: Row) -> TaskInstanceRef | None:
    """The claim that the task would make now. None if it no longer exists."""
    return row.instance and TaskInstanceRef(
        task_instance=str(row.instance), max_tries=row.max_tries, clear_number=row.clear_number
    )


def _every_job() -> Select:
    """Selects the jobs that a task has claimed and that still have a row.

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


def _look_for_ever() -> None:
    custodian, is_blind = Custodian(), False
    while True:
        time.sleep(_LOOK_SECONDS)
        try:
            with create_session() as session:
                custodian.look(session)
        except (
            Exception
        ):  # the database may be down for a long time; the next look finds the missed jobs
            if not is_blind:
                _log.exception("Can't look after the jobs; trying again every second")
            is_blind = True
        else:
            is_blind = False
