"""The operators of the four jobs, and their base: policy over the mechanism in `job_start.py`.

An operator plans its job and does nothing if the artifact exists. Otherwise it starts one process
and monitors it: for a few seconds in the task, because many jobs take no longer, and then from the
triggerer. The next task gets the URI of the manifest. `contract/cancellation.py` ends a job that is
no longer needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferralTimeout

from pipeline_ops.config.model_data_rules import check_model_for_data, check_train_split
from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.contract.layout import APPROVE
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.outcome import list_reasons
from pipeline_ops.contract.request import Status
from pipeline_ops.contract.results import EvaluationFigures
from pipeline_ops.contract.task_record import TaskRecord, find_recorded_manifest
from pipeline_ops.errors import DataError, ExitCode, MachineError, TrainyardError
from pipeline_ops.job.model_check import plan_training
from pipeline_ops.orchestration.assets import add_asset_event
from pipeline_ops.orchestration.job_handle import JobHandle
from pipeline_ops.orchestration.job_start import ProgressLog, prepare_job, start_job
from pipeline_ops.orchestration.notification import notify_drift, notify_gate, notify_skew
from pipeline_ops.orchestration.run_end import record_outcome
from pipeline_ops.orchestration.task_run import (
    InvalidConf,
    TaskRun,
    claim_job,
    find_claimed_job,
    find_running_job,
    make_airflow_error,
    pull_manifests,
)
from pipeline_ops.orchestration.trigger import JobTrigger
from pipeline_ops.places.open_place import open_place
from pipeline_ops.places.place import Place
from pipeline_ops.places.source_download import download_source
from pipeline_ops.planning.bucket_check import check_bucket
from pipeline_ops.planning.inputs import check_warm_start, find_champion
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.plan import JobPlan, plan_job
from pipeline_ops.retention.collector import record_use
from pipeline_ops.storage.local_files import translate_write_errors
from pipeline_ops.storage.open_store import open_near
from pipeline_ops.storage.request_cache import cache_requests
from pipeline_ops.storage.store_path import StorePath

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

_POLL_SECONDS, _BUCKET_POLL_SECONDS = 0.1, 0.5
_DEADLINE_SLACK_SECONDS = 300


class JobOperator(BaseOperator):
    """Runs one job of a pipeline.

    Args:
      config_file: the pipeline's YAML. A run's conf may set single values of it.
      pipeline_ref: the pipeline's `PipelineRef` as JSON, for the UI's pages.
    """

    job: str
    """One of `JOBS`, and the default of the task's id."""

    defer_after_seconds = 20.0
    """The task monitors its job for this long, because a deferral costs about two seconds."""

    ui_fgcolor = "#ffffff"
    template_fields = ("pipeline_ref",)
    """Contains no template. Airflow stores template fields in its database, where pages read it."""

    def __init__(
        self,
        *,
        config_file: str,
        pipeline_ref: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(task_id=task_id or self.job, **kwargs)
        self.config_file, self.pipeline_ref = config_file, pipeline_ref
        self.record_name = self.job
        """The name of the task's record and of the folder of its attempts."""
        self._handle: JobHandle | None = None

    def execute(self, context: Context) -> Any:
        """Follows the job of an earlier try, or starts one, and waits for it.

        Before a start it prepares what the plan needs, plans, which only reads, and protects what
        the run uses from `trainyard gc`. A plan that finds the result starts nothing.
        """
        run = self._load_run(context)
        with self._fail_on_error(run):
            place = open_place(run.config, self.job)
            self._handle = find_running_job(run, self.record_name, place)
        if self._handle is None:
            with self._fail_on_error(run):
                plan = self._plan_and_protect(run, place)
            if plan.is_cached:
                self.log.info("Nothing to do (%s). The result is %s", plan.reason, plan.manifest)
                record = TaskRecord(
                    state="success", cached=True, reason=plan.reason, made_by=plan.made_by
                )
                return self._succeed(run, plan.manifest, record)
            self.log.info("Starting the job, because: %s", plan.reason)
            with self._fail_on_error(run):
                self._handle = prepare_job(plan, run.layout, self.record_name, place)
                claim_job(run, self._handle)
                start_job(plan, self._handle)
            self.log.info("The folder of the job is %s", self._handle.attempt.folder)
        return self._wait_or_defer(run, self._handle)

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> Any:
        """Ends a job that has outlived its own deadline. The next try must not find it again."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            run = self._load_run(context)
            job, _ = find_claimed_job(run, self.record_name, self._open_place(run))
            if job:
                job.end("it did not end by its own deadline")
            raise

    def resume(self, context: Context, event: Mapping[str, str]) -> Any:
        """Called when the trigger has fired. The outcome is in the files of the named attempt."""
        run = self._load_run(context)
        attempt = run.layout.attempt(run.run_id, self.record_name, event["attempt"])
        self._handle = JobHandle(attempt, self._open_place(run))
        if status := self._handle.read_outcome():
            return self._finish(run, self._handle, status)
        return self._wait_or_defer(run, self._handle)

    def check_preconditions(self, run: TaskRun, manifests: Mapping[str, str]) -> None:
        """Raises if the results of the earlier tasks leave nothing to do. For subclasses."""

    def on_result(self, run: TaskRun, manifest: StorePath) -> None:
        """Sends notifications about the job's result, which may be cached. For subclasses."""

    def on_failure(self, run: TaskRun, exit_code: ExitCode) -> None:
        """Says what has become of the run, unless the task is tried again. For subclasses."""
        if not (exit_code.is_retried and run.has_more_tries):
            record_outcome(run, failed=self.record_name)

    def make_output(self, run: TaskRun, manifest: StorePath) -> Any:
        """Returns the value that the later tasks get: the URI of the manifest. For subclasses."""
        return str(manifest)

    def on_kill(self) -> None:
        """Called when the task is killed before it has deferred."""
        if self._handle:
            self._handle.end("its task was ended in Airflow")

    def get_openlineage_facets_on_complete(
        self, task_instance: RuntimeTaskInstanceProtocol
    ) -> OperatorLineage[Any, Any] | None:
        """Called by Airflow's OpenLineage provider when the task has ended."""
        from pipeline_ops.orchestration.lineage import build_lineage

        run = self._load_run(task_instance.get_template_context())
        manifest = find_recorded_manifest(
            run.layout, task_instance.run_id, self.record_name, self.job
        )
        return build_lineage(run.config, manifest) if manifest else None

    def _open_place(self, run: TaskRun) -> Place:
        with self._fail_on_error(run):
            return open_place(run.config, self.job)

    def _load_run(self, context: Context) -> TaskRun:
        try:
            return TaskRun.load(self.config_file, context)
        except InvalidConf as error:
            with contextlib.suppress(MachineError):
                record = TaskRecord(state="failed", message=str(error), exit_code=ExitCode.CONFIG)
                error.run.write_record(self.record_name, record)
                self.on_failure(error.run, ExitCode.CONFIG)
            raise

    def _plan_job(self, run: TaskRun, place: Place) -> JobPlan:
        with cache_requests():
            manifests = pull_manifests(run, KINDS[self.job].reads)
            self.check_preconditions(run, manifests)
            return plan_job(self.job, run.config, run.run_id, manifests, place)

    def _plan_and_protect(self, run: TaskRun, place: Place) -> JobPlan:
        """Plans the job, and keeps `trainyard gc` from removing what it relies on."""
        while True:
            plan = self._plan_job(run, place)
            inputs = [entry.uri for entry in plan.request.inputs.values()]
            used = [str(plan.manifest)] if plan.is_cached else inputs
            if record_use(run.config.root, used):  # otherwise it was removed in the meantime
                return plan

    def _wait_or_defer(self, run: TaskRun, handle: JobHandle) -> Any:
        deadline = time.monotonic() + self.defer_after_seconds
        log_offset = None if handle.place.is_this_host else 0
        progress = ProgressLog(handle.attempt, log_offset=log_offset)
        while (status := handle.read_outcome()) is None and time.monotonic() < deadline:
            progress.write_due_lines(self.log.info)
            time.sleep(_POLL_SECONDS if handle.attempt.folder.is_local else _BUCKET_POLL_SECONDS)
        progress.write_due_lines(self.log.info)
        if status is None:
            self._defer(run, handle, progress)
        return self._finish(run, handle, status)

    def _defer(self, run: TaskRun, handle: JobHandle, progress: ProgressLog) -> NoReturn:
        """Lets the triggerer monitor the job, for as long as it may wait and run."""
        hosts = run.config.find_job_hosts(self.job)
        trigger = JobTrigger(
            str(run.config.root),
            run.config.store_options.model_dump(),
            run.config.pipeline,
            run.run_id,
            self.record_name,
            handle.attempt.folder.name,
            progress.offset,
            # The triggerer needs no secrets of the job's environment.
            hosts.model_dump(mode="json", exclude={"environment"}) if hosts else None,
            progress.log_offset,
        )
        timeout_seconds = run.config.get_task_section(self.job).timeout_seconds
        seconds = timeout_seconds + handle.place.queue_seconds + _DEADLINE_SLACK_SECONDS
        self.defer(trigger=trigger, method_name="resume", timeout=dt.timedelta(seconds=seconds))
        raise AssertionError("defer has returned")

    def _finish(self, run: TaskRun, handle: JobHandle, status: Status) -> Any:
        handle.clean_up()
        if not status.exit_code.leaves_manifest:
            self._fail(run, status, handle)
        try:
            manifest = run.layout.check_manifest(self.job, status.manifest or "")
        except DataError as error:
            error.add_location(str(handle.attempt.status))
            self._fail(run, Status.of_error(error), handle)
        self.log.info("%s: %s", status.exit_code.name, manifest)
        record = TaskRecord(
            state="success",
            reason=handle.reason,
            message=status.message,
            attempt=str(handle.attempt.folder),
            exit_code=status.exit_code,
            store=status.store,
        )
        return self._succeed(run, manifest, record)

    def _succeed(self, run: TaskRun, manifest: StorePath, record: TaskRecord) -> Any:
        run.write_record(self.record_name, record.model_copy(update={"manifest": str(manifest)}))
        if not record.cached:
            add_asset_event(run, self.job, manifest)
        self.on_result(run, manifest)
        return self.make_output(run, manifest)

    @contextlib.contextmanager
    def _fail_on_error(self, run: TaskRun) -> Iterator[None]:
        try:
            yield
        except TrainyardError as error:
            self._fail(run, Status.of_error(error))

    def _fail(self, run: TaskRun, status: Status, handle: JobHandle | None = None) -> NoReturn:
        """Turns an exit code into a retry, a permanent failure, or a skipped task."""
        exit_code, message = status.exit_code, status.message
        request = handle.read_request() if handle else None
        record = TaskRecord(
            state="pruned" if exit_code is ExitCode.PRUNED else "failed",
            reason=request.reason if request else "",
            artifact=request.artifact if request else None,
            message=message,
            cure=status.cure,
            location=status.location,
            place=status.place,
            exit_code=exit_code,
            attempt=str(handle.attempt.folder) if handle else None,
        )
        try:
            run.write_record(self.record_name, record)
        except MachineError as error:  # the store itself may be what failed
            message = f"{message}\n{error}"
        self.on_failure(run, exit_code)
        raise make_airflow_error(exit_code, f"{self.job}: {exit_code.name}: {message}")


class PreprocessOperator(JobOperator):
    """Converts raw data to sharded TFRecords with Beam."""

    job = "preprocess"
    ui_color = "#2f6f9f"

    def check_preconditions(self, run: TaskRun, manifests: Mapping[str, str]) -> None:
        """Stops a run that cannot train before it preprocesses. Downloads the data of a source."""
        config = run.config
        check_model_for_data(config)
        if config.root.is_local:
            with translate_write_errors(config.root.local):
                config.root.local.mkdir(parents=True, exist_ok=True)
        find_champion(config)
        check_warm_start(config)
        download_source(config)

    def _plan_job(self, run: TaskRun, place: Place) -> JobPlan:
        """Plans the job, which checks before its work that the training can use the data."""
        plan = super()._plan_job(run, place)
        if plan.is_cached:
            return plan
        check_bucket(run.config)
        training = plan_training(run.config, sys.executable)
        request = plan.request.model_copy(update={"training": training})
        return dataclasses.replace(plan, request=request)

    def on_result(self, run: TaskRun, manifest: StorePath) -> None:
        notify_drift(run, manifest)


class TrainOperator(JobOperator):
    """Trains a candidate model on the shards with a gang of workers."""

    job = "train"
    ui_color = "#7a4fa3"

    def _plan_and_protect(self, run: TaskRun, place: Place) -> JobPlan:
        """Plans the job. A data set that is too small is refused before hosts are asked for."""
        plan = super()._plan_and_protect(run, place)
        if not plan.is_cached:
            uri = plan.request.inputs["preprocess"].uri
            dataset = DatasetFigures.model_validate(
                read_manifest(open_near(run.config.root, uri)).figures
            )
            check_train_split(run.config.train, dataset.num_examples["train"], uri)
            training = plan_training(run.config, sys.executable)
            changes = {"training": training.model_copy(update={"train": plan.request.config})}
            plan = dataclasses.replace(plan, request=plan.request.model_copy(update=changes))
        return plan


class EvaluateOperator(JobOperator):
    """Compares the challenger with the champion. A failed gate is a result, not a failure."""

    job = "evaluate"
    ui_color = "#a3744f"

    def on_result(self, run: TaskRun, manifest: StorePath) -> None:
        notify_gate(run, manifest)
        notify_skew(run, manifest)


class ExportOperator(JobOperator):
    """Publishes the challenger if it has passed the gate."""

    job = "export"
    ui_color = "#3f8f5f"

    def check_preconditions(self, run: TaskRun, manifests: Mapping[str, str]) -> None:
        if run.config.evaluate.approval is not None and APPROVE not in self.upstream_task_ids:
            raise AirflowFailException(
                "evaluate.approval cannot be set for a single run: the DAG has no task that asks. "
                f"Set it in {self.config_file}."
            )
        skip_unless_passed(run, manifests["evaluate"])

    def on_result(self, run: TaskRun, manifest: StorePath) -> None:
        record_outcome(run)


def skip_unless_passed(run: TaskRun, evaluation: str) -> EvaluationFigures:
    """Reads an evaluation, and skips the task if the gate was not passed."""
    manifest = read_manifest(open_near(run.config.root, evaluation))
    figures = EvaluationFigures.model_validate(manifest.figures)
    if not figures.gate_passed:
        record = TaskRecord(
            state="skipped",
            unpublished="refused",
            reason="; ".join(list_reasons(figures)),
            exit_code=ExitCode.GATE_NOT_PASSED,
        )
        raise AirflowSkipException(record_unpublished(run, record))
    return figures


def record_unpublished(run: TaskRun, record: TaskRecord) -> str:
    """Writes export's record of a run that publishes nothing. Returns the whole reason."""
    reason = f"trained, not published: {record.reason}"
    run.write_record("export", record.model_copy(update={"reason": reason, "try_number": None}))
    record_outcome(run)
    return reason


OPERATORS = (PreprocessOperator, TrainOperator, EvaluateOperator, ExportOperator)
"""The operators in the order in which a DAG runs them."""
