"""The run of a pipeline as one of its tasks sees it: config, folders, manifests and running job.

The manifests of the earlier tasks come by XCom. Every user who may edit task instances can edit an
XCom. Therefore its value counts only if the store's own record of that task and run has the same
value. A record names an artifact of the pipeline, below the root in the author's config. An XCom
alone never causes a file to be opened or fetched.

A job is claimed before it is started, so Airflow knows of every process that is started. The next
try finds the job by its claim, and follows or ends it. A job whose task is gone is found by the
same entry (`reaper/orphan_reaper.py`). From Airflow 3.3 on, the entry is in the task state store.
Airflow 3.2 has none, and removes the XComs of a task when its next try begins. There, the entry is
a file in the folder of the run, for the next try, and an XCom, for the orphan reaper. A forged file
ends or spares only the job of its own task. All who can write there can do that anyway, with the
other files of the job.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from pipeline_ops.airflow_connections import use_airflow_connections
from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.config.run_conf import apply_conf
from pipeline_ops.errors import ConfigError, DataError, ExitCode
from pipeline_ops.jobs.cancellation import STORE_KEY, StoredJob, TaskInstanceRef
from pipeline_ops.jobs.job_handle import JobHandle
from pipeline_ops.jobs.places.place import Place
from pipeline_ops.jobs.task_record import TaskRecord, find_recorded_manifest, write_record
from pipeline_ops.storage.parsing import read_json_as
from pipeline_ops.storage.snapshot import map_requests
from pipeline_ops.storage.store import read_usage
from pipeline_ops.storage.store_path import StorePath

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import DagRunProtocol

use_airflow_connections()


@dataclasses.dataclass(frozen=True)
class TaskRun:
    """One run of a pipeline.

    Attributes:
      config: the config of this run.
      context: Airflow's context of the task.
    """

    config: PipelineConfig
    context: Context

    @classmethod
    def load(cls, config_file: str, context: Context) -> TaskRun:
        """Loads the run's config.

        A conf that the pipeline forbids fails the task for good. A YAML that cannot be used is
        retried, because it may be mended, as the tasks of its broken DAG are.
        """
        run = context["dag_run"]
        try:
            author = load_config(config_file)
        except ConfigError as error:
            raise AirflowException(str(error)) from None
        try:
            config = apply_conf(author, run.conf, _read_data_interval(run))
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None
        return cls(config, context)

    @property
    def run_id(self) -> str:
        return self.context["run_id"]

    @property
    def layout(self) -> Layout:
        return Layout(self.config.root, self.config.pipeline)

    def write_record(self, task: str, record: TaskRecord) -> None:
        """Writes the record of a task, with the requests of this process and of its job."""
        counted = record.model_copy(update={"store": record.store + read_usage()})
        write_record(self.layout.task_record(self.run_id, task), counted)


def make_airflow_error(exit_code: ExitCode, message: str) -> AirflowException:
    """Makes the error that Airflow answers with a retry, or with a failure for good."""
    return (AirflowException if exit_code.is_retried else AirflowFailException)(message)


def _read_data_interval(run: DagRunProtocol) -> tuple[dt.datetime, dt.datetime] | None:
    """Reads the data interval of a run. A run by hand may have none."""
    start, end = getattr(run, "data_interval_start", None), getattr(run, "data_interval_end", None)
    return None if start is None or end is None else (start, end)


_MAX_SHOWN_CHARS = 200


def pull_manifests(run: TaskRun, tasks: Iterable[str]) -> dict[str, str]:
    """Pulls the manifests that some tasks of a run have left, by task.

    Each task makes the artifact of its own name.

    Raises:
      DataError: a task has left no manifest, for example because a person has marked it a success,
        or its XCom differs from its record.
    """
    tasks = list(tasks)
    recorded = map_requests(
        lambda task: find_recorded_manifest(run.layout, run.run_id, task, task), tasks
    )
    return {task: _check(run, task, found) for task, found in zip(tasks, recorded, strict=True)}


def _check(run: TaskRun, task: str, recorded: StorePath | None) -> str:
    """Returns the recorded manifest of a task, if its XCom has the same value."""
    pulled = run.context["ti"].xcom_pull(task_ids=task)
    if not pulled or recorded is None:
        raise DataError(
            f"{task} has left no manifest, so it was marked a success before it had ended. "
            f"Clear {task} to run it again."
        )
    if pulled != str(recorded):
        raise DataError(
            f"the XCom of {task} is {str(pulled)[:_MAX_SHOWN_CHARS]!r}, "
            f"but the task has left {recorded}, so the XCom was edited. "
            f"Clear {task} to run it again."
        )
    return str(recorded)


def write_entry(run: TaskRun, task: str, job: StoredJob) -> None:
    """Writes the entry of a task, in place of an older one."""
    if "task_state_store" in run.context:
        run.context["task_state_store"].set(STORE_KEY, job.model_dump())
        return
    from airflow.sdk.bases.xcom import BaseXCom  # the base: in the database, not in a backend

    content = job.model_dump_json()
    run.layout.claim(run.run_id, task).write(content.encode(), mode=0o600)
    ti = run.context["ti"]
    BaseXCom.set(
        STORE_KEY,
        content,
        dag_id=ti.dag_id,
        task_id=ti.task_id,
        run_id=run.run_id,
        map_index=-1 if ti.map_index is None else ti.map_index,
    )


def read_entry(run: TaskRun, task: str) -> StoredJob | None:
    """Reads the entry of a task. Raises DataError if it is invalid."""
    if "task_state_store" not in run.context:
        return read_json_as(StoredJob, run.layout.claim(run.run_id, task))
    value = run.context["task_state_store"].get(STORE_KEY)
    return StoredJob.parse(value) if value else None


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
    handle.clean_up()
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
