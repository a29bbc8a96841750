"""Ends the jobs that nobody wants any more, from the API server, which takes the orders that make them so.

Airflow's own hooks are not enough. `on_kill` of a task is not called where its worker was killed, and is cut short where the
machine is busy; `on_kill` of a trigger is not called where the triggerer is down, or had not begun with it; and of a task whose
tries are used up, nobody is told. So each job is looked at once a second: by the rule of `contracts/wanted.py` its task instance
still needs it, or it is told to end.

The storage root has to be in reach of the API server, as it has to be for the pages. Several API servers do the same, which does no harm.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path

from airflow.models.dagrun import DagRun
from airflow.models.task_state_store import TaskStateStoreModel
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import Row, Select, and_, delete, select
from sqlalchemy.orm import Session

from pipeline_ops.contracts.errors import MachineError
from pipeline_ops.contracts.layout import Attempt
from pipeline_ops.contracts.request import read_status
from pipeline_ops.contracts.wanted import STORE_KEY, Claim, ask_to_end, reason_to_end, why_unwanted

_LOOK_SECONDS = 1.0
_log = logging.getLogger(__name__)
_jobs, _tasks = TaskStateStoreModel, TaskInstance


def start() -> None:
    """Looks for ever, in a thread that ends with the process."""
    threading.Thread(target=_look_for_ever, name="trainyard-custodian", daemon=True).start()


class Custodian:
    """Remembers the jobs of its last look, because a deleted run takes its jobs' rows along; and which problems it has reported."""

    def __init__(self):
        self._known: dict[int, str] = {}
        self._reported: set[str] = set()

    def look(self, session: Session) -> None:
        """Ends what is not wanted now, and forgets it."""
        rows, wanted = session.execute(_every_job()).all(), {}
        for row in rows:
            try:
                folder, claim = _read(row.value)
            except (ValueError, TypeError, KeyError) as error:
                self._report(f"What {STORE_KEY} holds in Airflow's task state store can't be read here, so its job is not looked after: {error!r}")
                continue
            reason = why_unwanted(claim, _now(row), row.state)
            if reason is None:
                wanted[row.id] = folder
            elif self._end(folder, reason):
                session.execute(delete(_jobs).where(_jobs.id == row.id, _jobs.value == row.value))  # the next try may have put its own there
        for lost in self._known.keys() - {row.id for row in rows}:
            self._end(self._known[lost], "its run is not in Airflow any more")
        self._known = wanted

    def _end(self, folder: str, reason: str) -> bool:
        """Whether nothing is left to be done: the job has ended, or knows that it has to."""
        attempt = Attempt(Path(folder))
        if not attempt.folder.is_dir():
            self._report(f"The job in {folder} has to end ({reason}), and its folder is not in reach of the API server, so it can't be told")
            return False
        try:
            if read_status(attempt) is None and reason_to_end(attempt) is None:
                ask_to_end(attempt, reason)
                _log.info("The job in %s is told to end: %s", folder, reason)
        except (MachineError, OSError) as error:
            self._report(f"The job in {folder} has to end ({reason}), and can't be told: {error}")
            return False
        return True

    def _report(self, problem: str) -> None:
        """Once, and not every second."""
        if problem not in self._reported:
            self._reported.add(problem)
            _log.error("%s", problem)


def _read(value: str) -> tuple[str, Claim]:
    """The folder and the claim that a task has stored."""
    stored = json.loads(value)
    return stored["attempt"], Claim.model_validate(stored["claim"])


def _now(row: Row) -> Claim | None:
    """What the task would claim now; None where it is not there any more."""
    return row.task_id and Claim(task_instance=str(row.task_id), max_tries=row.max_tries, clear_number=row.clear_number)


def _every_job() -> Select:
    """Those that a task has claimed and that nobody has ended, each beside its task instance and run as they are now."""
    same_task = and_(_tasks.dag_id == _jobs.dag_id, _tasks.run_id == _jobs.run_id, _tasks.task_id == _jobs.task_id,
                     _tasks.map_index == _jobs.map_index)
    return (select(_jobs.id, _jobs.value, _tasks.id.label("task_id"), _tasks.state, _tasks.max_tries, DagRun.clear_number)
            .join(DagRun, DagRun.id == _jobs.dag_run_id).outerjoin(_tasks, same_task).where(_jobs.key == STORE_KEY))


def _look_for_ever() -> None:
    custodian, is_blind = Custodian(), False
    while True:
        time.sleep(_LOOK_SECONDS)
        try:
            with create_session() as session:
                custodian.look(session)
        except Exception:  # the database may be down for long; what is missed now is found when it is back
            if not is_blind:
                _log.exception("Can't look after the jobs; trying again every second")
            is_blind = True
        else:
            is_blind = False
