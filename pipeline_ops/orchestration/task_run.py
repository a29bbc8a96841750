"""The run of a pipeline as one of its tasks sees it: config, folders, manifests and running job.

The manifests of the earlier tasks come by XCom, which every user who may edit task instances can
edit. So an XCom counts only if it equals the task's record in the store, and a record can only name
an artifact of the pipeline. An XCom alone never causes a file to be opened or fetched.

A job is claimed before it is started, so Airflow knows of every process. By the claim, the next try
finds the job and follows or ends it, and the orphan reaper (`orphan_reaper.py`) finds a job
whose task is gone. From Airflow 3.3 on, the claim is in the task state store. Airflow 3.2 has none,
and removes the XComs of a task when its next try begins. There, the claim is a file in the folder
of the run, for the next try, and an XCom, for the orphan reaper. A forged file affects only the job
of its own task.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
)

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.config.run_conf import apply_conf
from pipeline_ops.contract.cancellation import STORE_KEY, StoredJob, TaskInstanceRef
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.task_record import TaskRecord, find_recorded_manifest, write_record
from pipeline_ops.errors import ConfigError, DataError, ExitCode
from pipeline_ops.orchestration.airflow_connections import use_airflow_connections
from pipeline_ops.orchestration.job_handle import JobHandle
from pipeline_ops.places.place import Place
from pipeline_ops.storage.parsing import read_json_as
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_path import read_usage

if TYPE_CHECKING:
    from airflow.sdk import Context

_MAX_SHOWN_CHARS = 200
_log = logging.getLogger(__name__)

use_airflow_connections()


class InvalidConf(AirflowFailException):
    """A run's conf that the pipeline forbids. `run` has the author's config."""

    def __init__(self, message: str, run: TaskRun):
        super().__init__(message)
        self.run = run


@dataclasses.dataclass(frozen=True)
class TaskRun:
    """One run of a pipeline: its config, and Airflow's context of the task."""

    config: PipelineConfig
    context: Context
    searched: PipelineConfig | None = None
    """For a trial: the config of its search, without the parameters of the trial."""

    @classmethod
    def load(cls, config_file: str, context: Context) -> TaskRun:
        """Loads the run's config.

        A conf that the pipeline forbids fails the task. An invalid YAML is retried, because its
        author may correct it.
        """
        run = context["dag_run"]
        start, end = (getattr(run, f"data_interval_{side}", None) for side in ("start", "end"))
        try:
            author = load_config(config_file)
        except ConfigError as error:
            raise AirflowException(str(error)) from None
        try:
            # A run by hand may have no interval.
            config = apply_conf(author, run.conf, (start, end) if start and end else None)
        except ConfigError as error:
            raise InvalidConf(str(error), cls(author, context)) from None
        return cls(config, context)

    @property
    def run_id(self) -> str:
        return self.context["run_id"]

    @property
    def layout(self) -> Layout:
        return Layout(self.config.root, self.config.pipeline)

    @property
    def has_more_tries(self) -> bool:
        """Whether Airflow tries this task again after a failure that another try may mend."""
        ti = self.context["ti"]
        return ti.try_number <= ti.max_tries

    def write_record(self, task: str, record: TaskRecord) -> None:
        """Writes the record of a task, with the requests of this process and of its job."""
        ti = self.context["ti"]
        changes = {
            "store": record.store + read_usage(),
            "try_number": ti.try_number if ti.task_id == task else None,
            "config_folder": str(self.config.file.parent) if record.message else "",
        }
        counted = record.model_copy(update=changes)
        write_record(self.layout.task_record(self.run_id, task), counted)


def make_airflow_error(exit_code: ExitCode, message: str) -> AirflowException:
    """Makes the exception that lets Airflow retry a task, fail it, or show it as skipped."""
    if exit_code is ExitCode.PRUNED:
        return AirflowSkipException(message)
    return (AirflowException if exit_code.is_retried else AirflowFailException)(message)


def pull_manifests(run: TaskRun, tasks: Iterable[str]) -> dict[str, str]:
    """Pulls the manifests that some tasks of a run have left, by task.

    Raises DataError if a task has left none, or if its XCom differs from its record.
    """
    manifests = {}
    for task, manifest in map_requests(
        lambda task: (task, find_recorded_manifest(run.layout, run.run_id, task, task)), tasks
    ):
        pulled = run.context["ti"].xcom_pull(task_ids=task)
        if not pulled or manifest is None:
            raise DataError(
                f"{task} has left no manifest, so it was marked a success before it had ended. "
                f"Clear {task} to run it again."
            )
        if pulled != str(manifest):
            raise DataError(
                f"the XCom of {task} is {str(pulled)[:_MAX_SHOWN_CHARS]!r}, "
                f"but the task has left {manifest}, so the XCom was edited. "
                f"Clear {task} to run it again."
            )
        manifests[task] = str(manifest)
    return manifests


def claim_job(run: TaskRun, handle: JobHandle) -> None:
    """Stores the job in Airflow's database, with this task instance as its owner."""
    folder = handle.attempt.folder
    job = StoredJob(attempt=folder.name, owner=_make_task_instance_ref(run.context))
    if "task_state_store" in run.context:
        run.context["task_state_store"].set(STORE_KEY, job.model_dump())
        return
    from airflow.sdk.bases.xcom import BaseXCom  # the base: in the database, not in a backend

    content = job.model_dump_json()
    run.layout.claim(run.run_id, folder.parent.name).write(content.encode(), mode=0o600)
    ti = run.context["ti"]
    BaseXCom.set(
        STORE_KEY,
        content,
        dag_id=ti.dag_id,
        task_id=ti.task_id,
        run_id=run.run_id,
        map_index=-1 if ti.map_index is None else ti.map_index,
    )


def find_running_job(run: TaskRun, task: str, place: Place) -> JobHandle | None:
    """Claims and returns the job that an earlier try of this task has started, if it still runs.

    Ends the job if it died, was cleared or was cancelled. Airflow may kill a task that is still
    running. The next try then starts before the job has ended.
    """
    handle, owner = find_claimed_job(run, task, place)
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


def find_claimed_job(
    run: TaskRun, task: str, place: Place
) -> tuple[JobHandle | None, TaskInstanceRef | None]:
    """Finds the job that this task has claimed, and its owner.

    For an invalid claim, which a user may have written, returns the newest job of the task without
    an owner, so that it is ended.
    """
    try:
        if "task_state_store" in run.context:
            value = run.context["task_state_store"].get(STORE_KEY)
            stored = StoredJob.parse(value) if value else None
        else:
            stored = read_json_as(StoredJob, run.layout.claim(run.run_id, task))
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
