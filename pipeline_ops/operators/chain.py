"""The operators of the four jobs in the order of a DAG, based on `job_operator.py`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from pipeline_ops.artifacts.dataset import DatasetFigures
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.artifacts.results import EvaluationFigures
from pipeline_ops.config.model_data_rules import validate_model_for_data
from pipeline_ops.errors import ExitCode
from pipeline_ops.jobs.model_check import validate_training
from pipeline_ops.jobs.planned_training import PlannedTraining
from pipeline_ops.jobs.task_record import TaskRecord
from pipeline_ops.operators.job_operator import JobOperator
from pipeline_ops.operators.notification import notify_drift, notify_gate
from pipeline_ops.operators.task_run import TaskRun
from pipeline_ops.planning.plan import JobPlan
from pipeline_ops.planning.storage_probe import check_storage
from pipeline_ops.planning.warm_start import check_warm_start
from pipeline_ops.storage.open_store import open_near
from pipeline_ops.storage.snapshot import read_once
from pipeline_ops.storage.store_path import StorePath


class PreprocessOperator(JobOperator):
    """Converts raw data to sharded TFRecords with Beam."""

    job = "preprocess"
    ui_color = "#2f6f9f"

    def check_preconditions(self, run: TaskRun, manifests: Mapping[str, str]) -> None:
        """Stops a run that cannot train before it preprocesses."""
        config = run.config
        validate_model_for_data(config)
        if config.root.is_local:
            config.root.local.mkdir(parents=True, exist_ok=True)
        check_warm_start(config)

    def _plan_job(self, run: TaskRun) -> JobPlan:
        """Plans the job, with checks of the storage and of the training.

        The job checks the training before its work. If the artifact is cached, the task checks it.
        """
        training = PlannedTraining.from_config(run.config, sys.executable)
        with read_once():
            plan = super()._plan_job(run)
            manifest = read_manifest(plan.manifest) if plan.is_cached else None
        if manifest is None:
            check_storage(run.config)
            return dataclasses.replace(
                plan, request=plan.request.model_copy(update={"training": training})
            )
        figures = DatasetFigures.model_validate(manifest.figures)
        validate_training(
            training,
            figures.task,
            figures.image_shape,
            len(figures.class_names),
            run.layout.checked_models,
        )
        return plan

    def on_result(self, run: TaskRun, manifest: StorePath) -> None:
        notify_drift(run, manifest)


class TrainOperator(JobOperator):
    """Trains a candidate model on the shards with a gang of workers."""

    job = "train"
    ui_color = "#7a4fa3"


class EvaluateOperator(JobOperator):
    """Compares the challenger with the champion. A failed gate is a result, not a failure."""

    job = "evaluate"
    ui_color = "#a3744f"

    def on_result(self, run: TaskRun, manifest: StorePath) -> None:
        notify_gate(run, manifest)


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


APPROVE = "approve"
"""The id of the task that asks a person, if the config has `evaluate.approval`."""


def skip_unless_passed(run: TaskRun, evaluation: str) -> EvaluationFigures:
    """Returns the evaluation of a manifest, or skips the task if the gate was not passed.

    Then export's record contains the reason.
    """
    manifest = read_manifest(open_near(run.config.root, evaluation))
    figures = EvaluationFigures.model_validate(manifest.figures)
    if not figures.gate_passed:
        reason = "; ".join(rule.text for rule in figures.rules if not rule.passed)
        raise AirflowSkipException(record_unpublished(run, reason, ExitCode.GATE_NOT_PASSED))
    return figures


def record_unpublished(run: TaskRun, reason: str, exit_code: ExitCode | None = None) -> str:
    """Writes export's record of a run that publishes nothing, which is a success.

    Returns:
      The whole reason.
    """
    reason = f"trained, not published: {reason}"
    run.write_record(
        ExportOperator.job, TaskRecord(state="skipped", reason=reason, exit_code=exit_code)
    )
    return reason


OPERATORS = (PreprocessOperator, TrainOperator, EvaluateOperator, ExportOperator)
"""The operators in the order in which a DAG runs them."""
