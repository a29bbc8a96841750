"""The four operators: policy over the mechanism in `process.py`.

An operator plans its job, does nothing if the artifact is there, and otherwise starts one process and follows it: for
a few seconds in the task, because many jobs take no longer, and then from the triggerer. What passes to the next task
is the URI of a manifest.

A job is claimed before it is started, so no process is ever started that Airflow does not know of; and one that is not wanted
any more is ended, whoever of Airflow's programs has been killed meanwhile (`contracts/wanted.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, TaskDeferralTimeout

from pipeline_ops.contracts.config import PipelineConfig, load_config
from pipeline_ops.contracts.errors import ConfigError, ExitCode, TrainyardError
from pipeline_ops.contracts.figures import EvaluationFigures
from pipeline_ops.contracts.layout import Layout
from pipeline_ops.contracts.manifest import read_manifest
from pipeline_ops.contracts.plan import KINDS, JobPlan, plan_job
from pipeline_ops.contracts.programs import refuse_other_programs
from pipeline_ops.contracts.records import TaskRecord, read_record, write_record
from pipeline_ops.contracts.request import Status
from pipeline_ops.contracts.wanted import STORE_KEY, Claim
from pipeline_ops.contracts.warm_start import check_warm_start
from pipeline_ops.operators.assets import tell
from pipeline_ops.operators.notices import tell_drift, tell_gate
from pipeline_ops.operators.process import JobHandle, ProgressLog, prepare_job, start_job
from pipeline_ops.operators.trigger import JobTrigger

_POLL_SECONDS = 0.1
_DEADLINE_SLACK_SECONDS = 300


class JobOperator(BaseOperator):
    """Runs one job of a pipeline.

    Args:
      config_file: the pipeline's YAML; the run's conf overrides single keys of it.
    """

    job: str
    """One of `plan.JOBS`; it is the task's id, too."""

    patience_seconds = 20.0
    """How long a task follows its job itself before it defers. A deferral costs about two seconds on the way back."""

    ui_fgcolor = "#ffffff"
    template_fields = ("config_file",)
    """Not for its templates: these fields are in Airflow's database, where the UI's pages find the config."""

    def __init__(self, *, config_file: str, task_id: str | None = None, **kwargs: Any):
        super().__init__(task_id=task_id or self.job, **kwargs)
        self.config_file = config_file
        self._handle: JobHandle | None = None

    @property
    def record_name(self) -> str:
        """What the task's record and the folder of its attempts are called."""
        return self.job

    def execute(self, context: Mapping[str, Any]) -> str:
        config = self._config(context)
        self._refuse_programs(config)
        manifests = self._manifests(config, context)
        self.refuse(config, context, manifests)
        self._handle = self._running_already(context)
        if self._handle is None:
            plan = self._plan(config, context, manifests)
            if plan.is_cached:
                self.log.info("Nothing to do: %s. %s", plan.reason, plan.manifest)
                self._record(config, context, TaskRecord(state="success", cached=True, reason=plan.reason, manifest=str(plan.manifest)))
                self.announce(config, context, str(plan.manifest))
                return str(plan.manifest)
            self.log.info("Starting the job, because: %s", plan.reason)
            self._handle = prepare_job(plan, Layout(config.root, config.pipeline), self.record_name)
            _claim(context, self._handle)
            process = start_job(plan, self._handle.attempt)
            self.log.info("Process %d, folder %s", process.pid, self._handle.attempt.folder)
        return self._follow(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Mapping[str, Any]) -> Any:
        """A job that has outlived its own deadline hangs; the next try must not find it again."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            JobHandle.from_json(context["task_state_store"].get(STORE_KEY)).end("it did not end by its own deadline")
            raise

    def resume(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> str:
        """Called when the trigger has fired: the job has ended."""
        handle = JobHandle.from_json(context["task_state_store"].get(STORE_KEY))
        return self._finish(context, handle, Status.model_validate(event))

    def refuse(self, config: PipelineConfig, context: Mapping[str, Any], manifests: Mapping[str, str]) -> None:
        """For subclasses: raises if there is nothing to be done with what the earlier tasks have left."""

    def announce(self, config: PipelineConfig, context: Mapping[str, Any], manifest: str) -> None:
        """For subclasses: tells people of what the job has found, or had found before."""

    def on_kill(self) -> None:
        """Called when the task is killed before it has deferred; afterwards it is the trigger's turn."""
        if self._handle:
            self._handle.end("its task was ended in Airflow")

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Called by Airflow's provider of OpenLineage, where it is installed, when the task has ended; None where it has left nothing."""
        from pipeline_ops.operators.lineage import lineage_of

        config = self._config(task_instance.get_template_context())
        record = read_record(Layout(config.root, config.pipeline).task_record(task_instance.run_id, self.record_name))
        return lineage_of(config, record.manifest) if record and record.manifest else None

    def _config(self, context: Mapping[str, Any]) -> PipelineConfig:
        run = context["dag_run"]
        try:
            return of_interval(load_config(self.config_file, run.conf), run)
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None

    @staticmethod
    def _refuse_programs(config: PipelineConfig) -> None:
        try:
            refuse_other_programs(config)
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None

    def _manifests(self, config: PipelineConfig, context: Mapping[str, Any]) -> dict[str, str]:
        """What the earlier tasks have left; one that a person has marked a success has left nothing."""
        manifests = {name: context["ti"].xcom_pull(task_ids=name) for name in KINDS[self.job].reads}
        if missing := [name for name, manifest in manifests.items() if not manifest]:
            message = f"{missing[0]} has left no manifest, so it was marked a success before it had ended; clear it, and it runs again"
            self._fail(config, context, Status(exit_code=ExitCode.DATA, message=message), None)
        return manifests

    def _plan(self, config: PipelineConfig, context: Mapping[str, Any], manifests: Mapping[str, str]) -> JobPlan:
        try:
            return plan_job(self.job, config, context["run_id"], manifests)
        except TrainyardError as error:
            status = Status(exit_code=error.exit_code, message=str(error))
        return self._fail(config, context, status, None)

    def _running_already(self, context: Mapping[str, Any]) -> JobHandle | None:
        """The job that an earlier try of this task has started, if it still runs; one that is dead, was cleared, or was told to end, is ended.

        It is told to end where Airflow takes a living task for dead, and kills it: the next try is there before the job is gone.
        """
        stored = context["task_state_store"].get(STORE_KEY)
        if not stored:
            return None
        handle = JobHandle.from_json(stored)
        is_ours = Claim.model_validate(stored["claim"]).passes_to(_claim_of(context))
        if is_ours and handle.is_alive() and not handle.is_told_to_end():
            self.log.info("The process of an earlier try still runs; following it. Its folder: %s", handle.attempt.folder)
            _claim(context, handle)
            return handle
        if not handle.has_ended():
            handle.end("another try of its task has begun anew")
        handle.bury()
        return None

    def _follow(self, context: Mapping[str, Any]) -> str:
        """Waits a little, then defers."""
        handle, deadline = self._handle, time.monotonic() + self.patience_seconds
        progress = ProgressLog(handle.attempt.progress)
        while (status := handle.outcome()) is None and time.monotonic() < deadline:
            self._log_progress(progress)
            time.sleep(_POLL_SECONDS)
        self._log_progress(progress)
        if status is None:
            timeout = timedelta(seconds=getattr(self._config(context), self.job).timeout_seconds + _DEADLINE_SLACK_SECONDS)
            self.defer(trigger=JobTrigger(handle.to_json(), progress.offset), method_name="resume", timeout=timeout)
        return self._finish(context, handle, status)

    def _finish(self, context: Mapping[str, Any], handle: JobHandle, status: Status) -> str:
        handle.bury()
        config = self._config(context)
        if not status.exit_code.leaves_manifest:
            self._fail(config, context, status, handle)
        record = TaskRecord(state="success", reason=handle.reason, manifest=status.manifest, message=status.message,
                            attempt=str(handle.attempt.folder), exit_code=status.exit_code)
        self._record(config, context, record)
        tell(context, config, self.job, status.manifest)
        self.announce(config, context, status.manifest)
        self.log.info("%s: %s", status.exit_code.name, status.manifest)
        return status.manifest

    def _fail(self, config: PipelineConfig, context: Mapping[str, Any], status: Status, handle: JobHandle | None) -> NoReturn:
        """Turns an exit code into a retry or into a failure for good."""
        record = TaskRecord(state="failed", reason=handle.reason if handle else "", message=status.message, exit_code=status.exit_code,
                            attempt=str(handle.attempt.folder) if handle else None)
        self._record(config, context, record)
        error = AirflowException if status.exit_code.is_retried else AirflowFailException
        raise error(f"{self.job}: {status.exit_code.name}: {status.message}")

    def _record(self, config: PipelineConfig, context: Mapping[str, Any], record: TaskRecord) -> None:
        write_record(Layout(config.root, config.pipeline).task_record(context["run_id"], self.record_name), record)

    def _log_progress(self, progress: ProgressLog) -> None:
        for line in progress.lines():
            self.log.info(line)


def _claim_of(context: Mapping[str, Any]) -> Claim:
    task, run = context["ti"], context["dag_run"]
    return Claim(task_instance=str(task.id), max_tries=task.max_tries, clear_number=run.clear_number)


def _claim(context: Mapping[str, Any], handle: JobHandle) -> None:
    """Says in Airflow's database whose job it is."""
    context["task_state_store"].set(STORE_KEY, handle.to_json() | {"claim": _claim_of(context).model_dump()})


class PreprocessOperator(JobOperator):
    """Raw data to sharded TFRecords, by Beam."""

    job = "preprocess"
    ui_color = "#2f6f9f"

    def refuse(self, config: PipelineConfig, context: Mapping[str, Any], manifests: Mapping[str, str]) -> None:
        """A run that can't train shall not preprocess first."""
        try:
            check_warm_start(config)
        except TrainyardError as error:
            self._fail(config, context, Status(exit_code=error.exit_code, message=str(error)), None)

    def announce(self, config: PipelineConfig, context: Mapping[str, Any], manifest: str) -> None:
        tell_drift(config, context, manifest)


class TrainOperator(JobOperator):
    """Shards to a candidate model, by a gang of workers."""

    job = "train"
    ui_color = "#7a4fa3"


class EvaluateOperator(JobOperator):
    """The challenger against the champion. A gate that is not passed is a result, not a failure."""

    job = "evaluate"
    ui_color = "#a3744f"

    def announce(self, config: PipelineConfig, context: Mapping[str, Any], manifest: str) -> None:
        tell_gate(config, context, manifest)


class ExportOperator(JobOperator):
    """Publishes the challenger, if it has passed the gate."""

    job = "export"
    ui_color = "#3f8f5f"

    def refuse(self, config: PipelineConfig, context: Mapping[str, Any], manifests: Mapping[str, str]) -> None:
        if config.evaluate.approval is not None and APPROVE not in self.upstream_task_ids:
            raise AirflowFailException("evaluate.approval was set for this run only, and the DAG has no task that asks; set it in "
                                       f"{self.config_file}")
        skip_unless_passed(config, context, manifests["evaluate"])


APPROVE = "approve"
"""The id of the task that asks a person, where the config has `evaluate.approval`."""


def of_interval(config: PipelineConfig, run: Any) -> PipelineConfig:
    """The config of a run whose raw data lie where its data interval says. A run by hand may have none, and is refused when it is planned."""
    start, end, source = getattr(run, "data_interval_start", None), getattr(run, "data_interval_end", None), config.preprocess.source
    if not source.has_interval or start is None or end is None:
        return config
    return load_config(config.file, (run.conf or {}) | {"preprocess.source.path": source.path_of(start, end)})


def skip_unless_passed(config: PipelineConfig, context: Mapping[str, Any], evaluation: str) -> EvaluationFigures:
    """The evaluation whose manifest's URI is given. Where the gate was not passed, the task ends as skipped, and export's record says why."""
    figures = EvaluationFigures.model_validate(read_manifest(evaluation).figures)
    if not figures.gate_passed:
        reason = "; ".join(rule.text for rule in figures.rules if not rule.passed)
        raise AirflowSkipException(record_unpublished(config, context, reason, ExitCode.GATE_NOT_PASSED))
    return figures


def record_unpublished(config: PipelineConfig, context: Mapping[str, Any], reason: str, exit_code: ExitCode | None = None) -> str:
    """Leaves export's record of a run that publishes nothing, which is a success. Returns the whole reason."""
    reason = f"trained, not published: {reason}"
    write_record(Layout(config.root, config.pipeline).task_record(context["run_id"], ExportOperator.job),
                 TaskRecord(state="skipped", reason=reason, exit_code=exit_code))
    return reason


OPERATORS = (PreprocessOperator, TrainOperator, EvaluateOperator, ExportOperator)
"""In the order in which a DAG runs them."""
