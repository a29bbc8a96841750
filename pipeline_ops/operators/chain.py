"""The operators of the four jobs in the order of a DAG, based on `job_operator.py`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from pipeline_ops.artifacts.dataset import DatasetFigures
from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.artifacts.results import EvaluationFigures
from pipeline_ops.config.model_data_rules import validate_model_for_data
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.errors import ExitCode
from pipeline_ops.jobs.model_check import validate_training
from pipeline_ops.jobs.planned_training import PlannedTraining
from pipeline_ops.jobs.task_record import TaskRecord, write_record
from pipeline_ops.operators.job_operator import JobOperator
from pipeline_ops.operators.notices import tell_drift, tell_gate
from pipeline_ops.planning.plan import JobPlan
from pipeline_ops.planning.storage_probe import check_storage
from pipeline_ops.planning.warm_start import check_warm_start


class PreprocessOperator(JobOperator):
    """Converts raw data to sharded TFRecords with Beam."""

    job = "preprocess"
    ui_color = "#2f6f9f"

    def refuse(
        self, config: PipelineConfig, context: Mapping[str, Any], manifests: Mapping[str, str]
    ) -> None:
        """Stops a run that cannot train before it preprocesses."""
        with self._failing(config, context):
            validate_model_for_data(config)
            config.root.mkdir(parents=True, exist_ok=True)
            check_storage(config)
            check_warm_start(config)

    def _plan(
        self, config: PipelineConfig, context: Mapping[str, Any], manifests: Mapping[str, str]
    ) -> JobPlan:
        """Plans the job, with a check of the training.

        The job checks the training before its work. If the artifact is cached, the task checks it.
        """
        plan = super()._plan(config, context, manifests)
        training = PlannedTraining.of(config, sys.executable)
        if not plan.is_cached:
            return dataclasses.replace(
                plan, request=plan.request.model_copy(update={"training": training})
            )
        with self._failing(config, context):
            figures = DatasetFigures.model_validate(read_manifest(plan.manifest).figures)
            passed = Layout(config.root, config.pipeline).checked_models
            validate_training(
                training, figures.task, figures.image_shape, len(figures.class_names), passed
            )
        return plan

    def announce(self, config: PipelineConfig, context: Mapping[str, Any], manifest: str) -> None:
        tell_drift(config, context, manifest)


class TrainOperator(JobOperator):
    """Trains a candidate model on the shards with a gang of workers."""

    job = "train"
    ui_color = "#7a4fa3"


class EvaluateOperator(JobOperator):
    """Compares the challenger with the champion. A failed gate is a result, not a failure."""

    job = "evaluate"
    ui_color = "#a3744f"

    def announce(self, config: PipelineConfig, context: Mapping[str, Any], manifest: str) -> None:
        tell_gate(config, context, manifest)


class ExportOperator(JobOperator):
    """Publishes the challenger if it has passed the gate."""

    job = "export"
    ui_color = "#3f8f5f"

    def refuse(
        self, config: PipelineConfig, context: Mapping[str, Any], manifests: Mapping[str, str]
    ) -> None:
        if config.evaluate.approval is not None and APPROVE not in self.upstream_task_ids:
            raise AirflowFailException(
                "evaluate.approval was set for this run only, and the DAG has no task that asks; "
                f"set it in {self.config_file}"
            )
        skip_unless_passed(config, context, manifests["evaluate"])


APPROVE = "approve"
"""The id of the task that asks a person, if the config has `evaluate.approval`."""


def skip_unless_passed(
    config: PipelineConfig, context: Mapping[str, Any], evaluation: str
) -> EvaluationFigures:
    """Returns the evaluation of a manifest, or skips the task if the gate was not passed.

    Then export's record contains the reason.
    """
    figures = EvaluationFigures.model_validate(read_manifest(evaluation).figures)
    if not figures.gate_passed:
        reason = "; ".join(rule.text for rule in figures.rules if not rule.passed)
        raise AirflowSkipException(
            record_unpublished(config, context, reason, ExitCode.GATE_NOT_PASSED)
        )
    return figures


def record_unpublished(
    config: PipelineConfig,
    context: Mapping[str, Any],
    reason: str,
    exit_code: ExitCode | None = None,
) -> str:
    """Writes export's record of a run that publishes nothing, which is a success.

    Returns:
      The whole reason.
    """
    reason = f"trained, not published: {reason}"
    write_record(
        Layout(config.root, config.pipeline).task_record(context["run_id"], ExportOperator.job),
        TaskRecord(state="skipped", reason=reason, exit_code=exit_code),
    )
    return reason


OPERATORS = (PreprocessOperator, TrainOperator, EvaluateOperator, ExportOperator)
"""The operators in the order in which a DAG runs them."""
