"""The base of the four operators: policy over the mechanism in `process.py`.

An operator plans its job and does nothing if the artifact is there. Otherwise it starts one process
and follows it: for a few seconds in the task, because many jobs take no longer, and then from the
triggerer. The URI of a manifest passes to the next task.

A job is claimed before it is started, so Airflow knows of every process that is started. A job that
is no longer needed is ended, even if Airflow's programs have been killed (`jobs/cancellation.py`).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferralTimeout

from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.run_config import run_config
from pipeline_ops.errors import ConfigError, DataError, ExitCode, TrainyardError
from pipeline_ops.jobs.cancellation import STORE_KEY, StoredJob, TaskInstanceRef
from pipeline_ops.jobs.request import Status
from pipeline_ops.jobs.task_record import TaskRecord, recorded_manifest, write_record
from pipeline_ops.operators.assets import tell
from pipeline_ops.operators.handover import manifests_of
from pipeline_ops.operators.process import JobHandle, ProgressLog, prepare_job, start_job
from pipeline_ops.operators.trigger import JobTrigger
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.plan import JobPlan, plan_job

_POLL_SECONDS = 0.1
_DEADLINE_SLACK_SECONDS = 300


class JobOperator(BaseOperator):
    """Runs one job of a pipeline.

    Args:
      config_file: the pipeline's YAML. A run's conf may set single values of it.
    """

    job: str
    """One of `plan.JOBS`, which is also the task's id."""

    patience_seconds = 20.0
    """The time in which a task follows its job itself, before it defers.

    A deferral costs about two seconds on the way back.
    """

    ui_fgcolor = "#ffffff"
    template_fields = ("config_file",)
    """Fields that Airflow stores in its database, where the UI's pages find the config.

    They contain no templates.
    """

    def __init__(self, *, config_file: str, task_id: str | None = None, **kwargs: Any):
        super().__init__(task_id=task_id or self.job, **kwargs)
        self.config_file = config_file
        self._handle: JobHandle | None = None

    @property
    def record_name(self) -> str:
        """The name of the task's record and of the folder of its attempts."""
        return self.job

    def execute(self, context: Mapping[str, Any]) -> str:
        config = self._config(context)
        manifests = self._manifests(config, context)
        self.refuse(config, context, manifests)
        self._handle = self._running_already(config, context)
        if self._handle is None:
            plan = self._plan(config, context, manifests)
            if plan.is_cached:
                self.log.info("Nothing to do: %s. %s", plan.reason, plan.manifest)
                self._record(
                    config,
                    context,
                    TaskRecord(
                        state="success",
                        cached=True,
                        reason=plan.reason,
                        manifest=str(plan.manifest),
                    ),
                )
                self.announce(config, context, str(plan.manifest))
                return str(plan.manifest)
            self.log.info("Starting the job, because: %s", plan.reason)
            self._handle = prepare_job(plan, Layout(config.root, config.pipeline), self.record_name)
            _claim(context, self._handle)
            process = start_job(plan, self._handle.attempt)
            self.log.info("Process %d, folder %s", process.pid, self._handle.attempt.folder)
        return self._follow(context)

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Mapping[str, Any]
    ) -> Any:
        """Ends a job that has outlived its own deadline. The next try must not find it again."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            if job := self._stored_job(self._config(context), context)[0]:
                job.end("it did not end by its own deadline")
            raise

    def resume(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> str:
        """Called when the trigger has fired, because the job has ended.

        The event names the attempt. The outcome is in the job's own files.
        """
        config = self._config(context)
        name = event.get("attempt") if isinstance(event, Mapping) else None
        self._handle = (
            self._job(config, context, str(name)) if name else self._stored_job(config, context)[0]
        )
        if self._handle is None:
            self._fail(
                config,
                context,
                Status(exit_code=ExitCode.RETRY, message="no job of this task can be found"),
                None,
            )
        status = self._handle.outcome()
        return self._finish(context, self._handle, status) if status else self._follow(context)

    def refuse(
        self, config: PipelineConfig, context: Mapping[str, Any], manifests: Mapping[str, str]
    ) -> None:
        """Raises if the results of the earlier tasks leave nothing to do. For subclasses."""

    def announce(self, config: PipelineConfig, context: Mapping[str, Any], manifest: str) -> None:
        """Sends notifications about the job's result, which may be cached. For subclasses."""

    def on_kill(self) -> None:
        """Called when the task is killed before it has deferred.

        Afterwards, Airflow calls the `on_kill` of the trigger.
        """
        if self._handle:
            self._handle.end("its task was ended in Airflow")

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Called by Airflow's OpenLineage provider, if it is installed, when the task has ended.

        Returns None if the task has left no manifest.
        """
        from pipeline_ops.operators.lineage import lineage_of

        config = self._config(task_instance.get_template_context())
        manifest = recorded_manifest(
            Layout(config.root, config.pipeline), task_instance.run_id, self.record_name, self.job
        )
        return manifest and lineage_of(config, manifest)

    def _config(self, context: Mapping[str, Any]) -> PipelineConfig:
        run = context["dag_run"]
        try:
            return run_config(self.config_file, run.conf, context["run_id"], interval_of(run))
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None

    def _manifests(self, config: PipelineConfig, context: Mapping[str, Any]) -> dict[str, str]:
        """The manifests of the earlier tasks."""
        with self._failing(config, context):
            return manifests_of(config, context, KINDS[self.job].reads)

    def _plan(
        self, config: PipelineConfig, context: Mapping[str, Any], manifests: Mapping[str, str]
    ) -> JobPlan:
        with self._failing(config, context):
            return plan_job(self.job, config, context["run_id"], manifests)

    def _running_already(
        self, config: PipelineConfig, context: Mapping[str, Any]
    ) -> JobHandle | None:
        """Returns the job that an earlier try of this task has started, if it still runs.

        A job that is dead, was cleared, or was asked to end, is ended. A job is asked to end when
        Airflow takes a living task for dead and kills it. The next try then starts before the job
        is gone.
        """
        handle, claim = self._stored_job(config, context)
        if handle is None:
            return None
        is_ours = claim is not None and claim.passes_to(_claim_of(context))
        if is_ours and handle.is_alive() and not handle.is_told_to_end():
            self.log.info(
                "The process of an earlier try still runs; following it. Its folder: %s",
                handle.attempt.folder,
            )
            _claim(context, handle)
            return handle
        if not handle.has_ended():
            handle.end("another try of its task has begun anew")
        handle.reap()
        return None

    def _job(self, config: PipelineConfig, context: Mapping[str, Any], name: str) -> JobHandle:
        """The job of this task in an attempt. Raises DataError for an unknown attempt."""
        return JobHandle(
            Layout(config.root, config.pipeline).attempt(context["run_id"], self.record_name, name)
        )

    def _stored_job(
        self, config: PipelineConfig, context: Mapping[str, Any]
    ) -> tuple[JobHandle | None, TaskInstanceRef | None]:
        """The job that this task has claimed, and the claim.

        A user can write anything in their place. In that case it is the last job that the task has
        started, without a claim, so that it is ended.
        """
        value = context["task_state_store"].get(STORE_KEY)
        if not value:
            return None, None
        try:
            stored = StoredJob.parse(value)
            return self._job(config, context, stored.attempt), stored.claim
        except DataError as error:
            self.log.warning("%s; the newest job of this task is taken in its place", error)
        newest = Layout(config.root, config.pipeline).newest_attempt(
            context["run_id"], self.record_name
        )
        return newest and JobHandle(newest), None

    def _follow(self, context: Mapping[str, Any]) -> str:
        """Waits a little, then defers."""
        handle, deadline = self._handle, time.monotonic() + self.patience_seconds
        progress = ProgressLog(handle.attempt)
        while (status := handle.outcome()) is None and time.monotonic() < deadline:
            self._log_progress(progress)
            time.sleep(_POLL_SECONDS)
        self._log_progress(progress)
        if status is None:
            config = self._config(context)
            timeout = timedelta(
                seconds=getattr(config, self.job).timeout_seconds + _DEADLINE_SLACK_SECONDS
            )
            trigger = JobTrigger(
                str(config.root),
                config.pipeline,
                context["run_id"],
                self.record_name,
                handle.attempt.folder.name,
                progress.offset,
            )
            self.defer(trigger=trigger, method_name="resume", timeout=timeout)
        return self._finish(context, handle, status)

    def _finish(self, context: Mapping[str, Any], handle: JobHandle, status: Status) -> str:
        handle.reap()
        config = self._config(context)
        if not status.exit_code.leaves_manifest:
            self._fail(config, context, status, handle)
        try:
            Layout(config.root, config.pipeline).check_manifest(self.job, status.manifest or "")
        except DataError as error:
            self._fail(
                config,
                context,
                Status(exit_code=error.exit_code, message=f"{handle.attempt.status}: {error}"),
                handle,
            )
        record = TaskRecord(
            state="success",
            reason=handle.reason,
            manifest=status.manifest,
            message=status.message,
            attempt=str(handle.attempt.folder),
            exit_code=status.exit_code,
        )
        self._record(config, context, record)
        tell(context, config, self.job, status.manifest)
        self.announce(config, context, status.manifest)
        self.log.info("%s: %s", status.exit_code.name, status.manifest)
        return status.manifest

    @contextlib.contextmanager
    def _failing(self, config: PipelineConfig, context: Mapping[str, Any]) -> Iterator[None]:
        """Fails the task if the block raises an error."""
        try:
            yield
        except TrainyardError as error:
            self._fail(config, context, Status(exit_code=error.exit_code, message=str(error)), None)

    def _fail(
        self,
        config: PipelineConfig,
        context: Mapping[str, Any],
        status: Status,
        handle: JobHandle | None,
    ) -> NoReturn:
        """Turns an exit code into a retry or into a permanent failure."""
        record = TaskRecord(
            state="failed",
            reason=handle.reason if handle else "",
            message=status.message,
            exit_code=status.exit_code,
            attempt=str(handle.attempt.folder) if handle else None,
        )
        self._record(config, context, record)
        error = AirflowException if status.exit_code.is_retried else AirflowFailException
        raise error(f"{self.job}: {status.exit_code.name}: {status.message}")

    def _record(
        self, config: PipelineConfig, context: Mapping[str, Any], record: TaskRecord
    ) -> None:
        write_record(
            Layout(config.root, config.pipeline).task_record(context["run_id"], self.record_name),
            record,
        )

    def _log_progress(self, progress: ProgressLog) -> None:
        for line in progress.lines():
            self.log.info(line)


def _claim_of(context: Mapping[str, Any]) -> TaskInstanceRef:
    task, run = context["ti"], context["dag_run"]
    return TaskInstanceRef(
        task_instance=str(task.id), max_tries=task.max_tries, clear_number=run.clear_number
    )


def _claim(context: Mapping[str, Any], handle: JobHandle) -> None:
    """Stores the owner of the job in Airflow's database."""
    stored = StoredJob(attempt=handle.attempt.folder.name, claim=_claim_of(context))
    context["task_state_store"].set(STORE_KEY, stored.model_dump())


def interval_of(run: Any) -> tuple[dt.datetime, dt.datetime] | None:
    """The data interval of a run. A run by hand may have none."""
    start, end = getattr(run, "data_interval_start", None), getattr(run, "data_interval_end", None)
    return None if start is None or end is None else (start, end)
