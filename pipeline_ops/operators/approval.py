"""The task between evaluate and export that asks a person, through Airflow's required actions.

While it waits, it holds no worker and no trigger. It asks nothing if there is nothing to decide:
the gate was not passed, or this model is published already. "Reject", and no answer in time, end
the run as "trained, not published", which is a success.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowFailException

from pipeline_ops.artifacts.results import EvaluationFigures
from pipeline_ops.config.evaluate import Approval
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.errors import TrainyardError
from pipeline_ops.operators.notification import build_report_url
from pipeline_ops.operators.task_run import TaskRun, pull_manifests
from pipeline_ops.operators.tasks import APPROVE, record_unpublished, skip_unless_passed
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.plan import plan_job

if TYPE_CHECKING:
    from airflow.sdk import Context


class ApproveOperator(ApprovalOperator):
    """Asks whether the challenger may be published.

    Args:
      config_file: the pipeline's YAML. A run's conf may set single values of it.
      approval: the approval section of the YAML.
    """

    ui_color = "#b8862f"
    ui_fgcolor = "#ffffff"

    def __init__(self, *, config_file: str, approval: Approval, **kwargs: Any):
        super().__init__(
            task_id=APPROVE,
            subject="Publish this model?",
            defaults=self._default(approval),
            response_timeout=dt.timedelta(seconds=approval.timeout_seconds),
            **kwargs,
        )
        self.config_file = config_file

    def execute(self, context: Context) -> None:
        run = TaskRun.load(self.config_file, context)
        try:
            manifests = pull_manifests(run, KINDS["export"].reads)
            figures = skip_unless_passed(run, manifests["evaluate"])
            plan = plan_job("export", run.config, run.run_id, manifests)
        except TrainyardError as error:
            raise AirflowFailException(str(error)) from None
        approval = run.config.evaluate.approval
        if plan.is_cached or approval is None:
            self.log.info(
                "Nothing to ask: %s",
                plan.reason if plan.is_cached else "this run needs no approval",
            )
            return
        self.subject, self.body = _format_question(run.config, approval, figures, run.run_id)
        self.defaults = [self._default(approval)]
        self.response_timeout = dt.timedelta(seconds=approval.timeout_seconds)
        super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Called when a person has answered, or when the time is up."""
        if event.get("chosen_options") == [self.REJECT]:
            run = TaskRun.load(self.config_file, context)
            self.log.info(record_unpublished(run, _describe_rejection(event)))
        return super().execute_complete(context, event)

    def _default(self, approval: Approval) -> str:
        return self.APPROVE if approval.on_timeout == "approve" else self.REJECT


def _format_question(
    config: PipelineConfig, approval: Approval, figures: EvaluationFigures, run_id: str
) -> tuple[str, str]:
    """Returns subject and body, in Markdown.

    The rules stand in a code block, so that their text is not read as Markdown.
    """
    champion = (
        "There is no champion yet."
        if figures.champion_version is None
        else f"Version {figures.champion_version} is in service."
    )
    rules = "\n".join(rule.text.replace("```", "'''") for rule in figures.rules)
    until = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=approval.timeout_seconds)
    outcome = "published" if approval.on_timeout == "approve" else "not published"
    return (
        f"Publish a new version of {config.export.model}?",
        f"The challenger of the pipeline {config.pipeline} has passed the gate on "
        f"{figures.num_examples} test images. {champion}\n\n```\n{rules}\n```\n\n"
        f"[The report]({build_report_url(config, run_id)}) has the details. "
        f"Without an answer until {until:%Y-%m-%d %H:%M} UTC, it is {outcome}.\n",
    )


def _describe_rejection(event: Mapping[str, Any]) -> str:
    user = event.get("responded_by_user")
    return f"rejected by {user.get('name') or user.get('id')}" if user else "no answer in time"
