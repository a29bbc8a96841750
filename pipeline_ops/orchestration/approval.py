"""The task between evaluate and export that asks a person, through Airflow's required actions.

While it waits, it holds no worker and no trigger. It does not ask if the gate was not passed, or if
this model is published already. After "Reject" the run ends as "trained, not published", which is a
success.
"""

from __future__ import annotations

import datetime as dt
import unicodedata
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException

from pipeline_ops.config.evaluate import Approval
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.contract.layout import APPROVE
from pipeline_ops.contract.results import EvaluationFigures
from pipeline_ops.contract.task_record import TaskRecord
from pipeline_ops.errors import TrainyardError
from pipeline_ops.orchestration.notification import build_report_url
from pipeline_ops.orchestration.task_run import TaskRun, pull_manifests
from pipeline_ops.orchestration.tasks import record_unpublished, skip_unless_passed
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.plan import plan_job

if TYPE_CHECKING:
    from airflow.sdk import Context


REASON = "reason"
"""The field of the question in which a person says why."""
_MAX_REASON = 300


class ApproveOperator(ApprovalOperator):
    """Asks whether the challenger may be published."""

    ui_color = "#b8862f"
    ui_fgcolor = "#ffffff"

    def __init__(self, *, config_file: str, approval: Approval, **kwargs: Any):
        super().__init__(
            task_id=APPROVE,
            subject="Publish this model?",
            defaults=self._default(approval),
            response_timeout=dt.timedelta(seconds=approval.timeout_seconds),
            params={REASON: _make_reason_field()},
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
            reason = plan.reason if plan.is_cached else "this run needs no approval"
            self.log.info("Nothing to ask: %s", reason)
            return
        self.subject, self.body = _format_question(run.config, approval, figures, run.run_id)
        self.defaults = [self._default(approval)]
        self.response_timeout = dt.timedelta(seconds=approval.timeout_seconds)
        super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Called when a person has answered, or when the time is up."""
        if event.get("chosen_options") == [self.REJECT]:
            run, user = TaskRun.load(self.config_file, context), event.get("responded_by_user")
            by = str(user.get("name") or user.get("id")) if user else ""
            given = event.get("params_input") or {}
            self.validate_params_input(given)  # before anything is recorded
            record = TaskRecord(
                state="skipped",
                unpublished="rejected" if by else "unanswered",
                rejected_by=by,
                message=_clean(str(given.get(REASON) or "")),
                reason=f"rejected by {by}" if by else "no answer in time",
            )
            self.log.info(record_unpublished(run, record))
        return super().execute_complete(context, event)

    def _default(self, approval: Approval) -> str:
        return self.APPROVE if approval.on_timeout == "approve" else self.REJECT


def _make_reason_field() -> Param:
    return Param(
        "",
        type="string",
        title="Reason",
        description="Why you reject, which is told with the run. Not needed to approve.",
        source="task",
    )


def _clean(reason: str) -> str:
    """Returns a reason as one line without control and format characters, and not too long.

    A longer one is no reason for Airflow to fail the task, so the field has no limit.
    """
    line = " ".join(reason.split()).replace('"', "'")
    kept = "".join(each for each in line if unicodedata.category(each) not in ("Cc", "Cf"))
    return kept if len(kept) <= _MAX_REASON else f"{kept[: _MAX_REASON - 1].rstrip()}…"


def _format_question(
    config: PipelineConfig, approval: Approval, figures: EvaluationFigures, run_id: str
) -> tuple[str, str]:
    """Returns subject and body, in Markdown. A code block keeps the rules as they are."""
    champion = (
        "There was no champion when it was evaluated."
        if figures.champion_version is None
        else f"It was compared with version {figures.champion_version}, in service then."
    )
    texts = [*(rule.text for rule in figures.rules), *figures.warnings]
    rules = "\n".join(text.replace("```", "'''") for text in texts)
    until = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=approval.timeout_seconds)
    outcome = "published" if approval.on_timeout == "approve" else "not published"
    return (
        f"Publish a new version of {config.export.model}?",
        f"The challenger of the pipeline {config.pipeline} has passed the gate on "
        f"{figures.num_examples} test images. {champion}\n\n```\n{rules}\n```\n\n"
        f"[The report]({build_report_url(config, run_id)}) has the details. "
        f"Without an answer until {until:%Y-%m-%d %H:%M} UTC, it is {outcome}.\n",
    )
