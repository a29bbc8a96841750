"""The task between evaluate and export that asks a person, through Airflow's required actions.

While it waits, it holds no worker and no trigger. It asks nothing if there is nothing to decide:
the gate was not passed, or this model is published already. "Reject", and no answer in time, end
the run as "trained, not published", which is a success.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowFailException

from pipeline_ops.artifacts.results import EvaluationFigures
from pipeline_ops.config.evaluate import Approval
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.run_config import run_config
from pipeline_ops.errors import TrainyardError
from pipeline_ops.operators.chain import APPROVE, record_unpublished, skip_unless_passed
from pipeline_ops.operators.handover import manifests_of
from pipeline_ops.operators.notices import link_of_report
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.plan import plan_job


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

    def execute(self, context: Mapping[str, Any]) -> None:
        try:
            config = run_config(self.config_file, context["dag_run"].conf, context["run_id"])
            manifests = manifests_of(config, context, KINDS["export"].reads)
            figures = skip_unless_passed(config, context, manifests["evaluate"])
            plan = plan_job("export", config, context["run_id"], manifests)
        except TrainyardError as error:
            raise AirflowFailException(str(error)) from None
        approval = config.evaluate.approval
        if plan.is_cached or approval is None:
            self.log.info(
                "Nothing to ask: %s",
                plan.reason if plan.is_cached else "this run needs no approval",
            )
            return
        self.subject, self.body = _ask(config, figures, link_of_report(config, context["run_id"]))
        self.defaults, self.response_timeout = (
            [self._default(approval)],
            dt.timedelta(seconds=approval.timeout_seconds),
        )
        super().execute(context)

    def execute_complete(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Any:
        """Called when a person has answered, or when the time is up."""
        if event.get("chosen_options") == [self.REJECT]:
            config = run_config(self.config_file, context["dag_run"].conf, context["run_id"])
            self.log.info(record_unpublished(config, context, _who(event)))
        return super().execute_complete(context, event)

    def _default(self, approval: Approval) -> str:
        return self.APPROVE if approval.without_answer == "approve" else self.REJECT


def _ask(config: PipelineConfig, figures: EvaluationFigures, report: str) -> tuple[str, str]:
    """Returns subject and body, in Markdown.

    The rules stand in a code block, so that their text is not read as Markdown.
    """
    champion = (
        "There is no champion yet."
        if figures.champion_version is None
        else f"In service is version {figures.champion_version}."
    )
    rules = "\n".join(rule.text.replace("```", "'''") for rule in figures.rules)
    return (
        f"Publish a new version of {config.export.model}?",
        f"The challenger of the pipeline {config.pipeline} has passed the gate on "
        f"{figures.num_examples} test images. {champion}\n\n```\n{rules}\n```\n\n"
        f"More is in [the report]({report}). {_without_answer(config.evaluate.approval)}\n",
    )


def _without_answer(approval: Approval) -> str:
    until = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=approval.timeout_seconds)
    outcome = "it is published" if approval.without_answer == "approve" else "it is not published"
    return f"Without an answer until {until:%Y-%m-%d %H:%M} UTC, {outcome}."


def _who(event: Mapping[str, Any]) -> str:
    user = event.get("responded_by_user")
    return (
        f"rejected by {user.get('name') or user.get('id')}" if user else "nobody answered in time"
    )
