"""Writes the sentence of a run's outcome into the note of Airflow's run.

Airflow calls the two hooks in the scheduler when a run has ended, and in the API server when a user
ends one. Only the database is read there. A note that a person has written stays. Every process of
Airflow imports this module, so it imports more only in a hook.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, cast

from airflow.listeners import hookimpl

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from sqlalchemy import CursorResult
    from sqlalchemy.orm import Session

_MAX_NOTE = 1000
_MAX_EVENTS = 50


@hookimpl
def on_dag_run_success(dag_run: DagRun) -> None:
    _write_note(dag_run, ("success", "skipped"))


@hookimpl
def on_dag_run_failed(dag_run: DagRun) -> None:
    _write_note(dag_run, ("failed",))


def _write_note(dag_run: DagRun, states: tuple[str, ...]) -> None:
    """Takes the sentence of a task in one of the states. Other tasks may have an older one."""
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    from pipeline_ops.contract.outcome import OUTCOME_KEY, RunFacts, describe_outcome
    from pipeline_ops.orchestration.airflow_models import TAG, DagTag, TaskInstance, XComModel

    session = object_session(dag_run)
    if session is None:
        return
    is_ours = select(DagTag).where(DagTag.dag_id == dag_run.dag_id, DagTag.name == TAG)
    if session.scalar(is_ours) is None:
        return
    tasks = session.execute(
        select(TaskInstance.task_id, TaskInstance.state)
        .where(TaskInstance.dag_id == dag_run.dag_id, TaskInstance.run_id == dag_run.run_id)
        .order_by(TaskInstance.end_date)
    ).all()
    rows = session.execute(
        select(XComModel.task_id, XComModel.value).where(
            XComModel.dag_id == dag_run.dag_id,
            XComModel.run_id == dag_run.run_id,
            XComModel.key == OUTCOME_KEY,
        )
    )
    sentences = {row.task_id: row.value for row in rows}
    found = [sentences[task] for task, state in tasks if state in states and task in sentences]
    if not found and (failed := [task for task, state in tasks if state == "failed"]):
        user = find_canceller(dag_run.dag_id, dag_run.run_id, dag_run.start_date, session)
        records = dict.fromkeys(failed)
        found = [describe_outcome(RunFacts(records, failed=failed[0], ended_by=user)).sentence]
    if found:
        _put_note(dag_run, _parse_sentence(found[0]), session)


def _put_note(dag_run: DagRun, text: str, session: Session) -> None:
    """Writes our note, unless there is one of a user.

    The scheduler and the API server may do it at the same time. So nothing here can conflict: an
    error would take back the end of the run, too.
    """
    from sqlalchemy import update
    from sqlalchemy.dialects import mysql, postgresql, sqlite

    from pipeline_ops.orchestration.airflow_models import DagRunNote

    is_ours = DagRunNote.dag_run_id == dag_run.id, DagRunNote.user_id.is_(None)
    change = update(DagRunNote).where(*is_ours).values(content=text)
    options = {"synchronize_session": False}
    changed = cast("CursorResult[Any]", session.execute(change, execution_options=options))
    if changed.rowcount == 0:
        values = {"dag_run_id": dag_run.id, "content": text}
        kind = session.get_bind().dialect.name
        if kind == "mysql":
            session.execute(mysql.insert(DagRunNote).values(values).prefix_with("IGNORE"))
        else:
            dialect = postgresql if kind == "postgresql" else sqlite
            session.execute(dialect.insert(DagRunNote).values(values).on_conflict_do_nothing())
    session.expire(dag_run, ["dag_run_note"])


def _parse_sentence(value: object) -> str:
    """The text of an XCom, which any user who may edit task instances can have written."""
    return str(value)[:_MAX_NOTE]


def find_canceller(dag_id: str, run_id: str, since: dt.datetime | None, session: Session) -> str:
    """Finds the user who has marked a run or one of its tasks failed, in Airflow's audit log.

    Returns "" if nobody has.
    """
    ending = find_ending(dag_id, run_id, since, session)
    return ending[0] if ending else ""


def find_ending(
    dag_id: str, run_id: str, since: dt.datetime | None, session: Session
) -> tuple[str, dt.datetime | None] | None:
    """Finds who has marked a run or one of its tasks failed, and when. None if nobody has."""
    from sqlalchemy import select

    from pipeline_ops.contract.outcome import ENDING_EVENTS, is_ending_event
    from pipeline_ops.orchestration.airflow_models import Log

    entries = session.execute(
        select(Log.owner, Log.event, Log.extra, Log.dttm)
        .where(Log.dag_id == dag_id, Log.run_id == run_id, Log.event.in_(ENDING_EVENTS))
        .order_by(Log.dttm.desc())
        .limit(_MAX_EVENTS)
    )
    for owner, event, extra, time in entries:
        is_new = since is None or time is None or time >= since
        if is_new and is_ending_event(event, extra):
            return str(owner), time
    return None
