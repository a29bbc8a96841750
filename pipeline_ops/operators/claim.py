"""The job that a task has claimed, by its entry in Airflow (`claim_store.py`).

A job is claimed before it is started, so Airflow knows of every process that is started. The next
try finds the job by its claim, and follows or ends it. A job whose task is gone is found by the
same entry (`reaper/orphan_reaper.py`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pipeline_ops.errors import DataError
from pipeline_ops.jobs.cancellation import StoredJob, TaskInstanceRef
from pipeline_ops.jobs.job_handle import JobHandle
from pipeline_ops.jobs.places.place import Place
from pipeline_ops.operators.claim_store import read_entry, write_entry
from pipeline_ops.operators.task_run import TaskRun

if TYPE_CHECKING:
    from airflow.sdk import Context

_log = logging.getLogger(__name__)


def claim_job(run: TaskRun, handle: JobHandle) -> None:
    """Stores the job, with this task instance as its owner, in Airflow's database."""
    folder = handle.attempt.folder
    job = StoredJob(attempt=folder.name, owner=_make_task_instance_ref(run.context))
    write_entry(run, folder.parent.name, job)


def find_running_job(run: TaskRun, task: str, place: Place) -> JobHandle | None:
    """Claims and returns the job that an earlier try of this task has started, if it still runs.

    A job that is dead, was cleared, or was asked to end, is ended. A job is asked to end when
    Airflow takes a living task for dead and kills it. The next try then starts before the job is
    gone.
    """
    handle, owner = _load_stored_job(run, task, place)
    if handle is None:
        return None
    is_ours = owner is not None and owner.can_hand_over_to(_make_task_instance_ref(run.context))
    if is_ours and handle.is_alive() and not handle.is_cancellation_requested():
        _log.info(
            "The job of an earlier try still runs. This try follows it. Its folder: %s",
            handle.attempt.folder,
        )
        claim_job(run, handle)
        return handle
    if not handle.has_ended():
        handle.end("another try of its task has begun")
    handle.reap()
    return None


def find_claimed_job(run: TaskRun, task: str, place: Place) -> JobHandle | None:
    """Returns the job that this task has claimed."""
    return _load_stored_job(run, task, place)[0]


def _load_stored_job(
    run: TaskRun, task: str, place: Place
) -> tuple[JobHandle | None, TaskInstanceRef | None]:
    """Loads the job that this task has claimed, and its owner.

    A user can write anything in their place. In that case it is the last job that the task has
    started, without an owner, so that it is ended.
    """
    try:
        stored = read_entry(run, task)
        if stored is None:
            return None, None
        attempt = run.layout.attempt(run.run_id, task, stored.attempt)
        return JobHandle(attempt, place), stored.owner
    except DataError as error:
        _log.warning("%s. The newest job of this task is used instead.", error)
    newest = run.layout.newest_attempt(run.run_id, task)
    return JobHandle(newest, place) if newest else None, None


def _make_task_instance_ref(context: Context) -> TaskInstanceRef:
    task, run = context["ti"], context["dag_run"]
    return TaskInstanceRef(
        task_instance=str(task.id), max_tries=task.max_tries, clear_number=run.clear_number or 0
    )
