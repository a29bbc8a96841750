"""Sends notifications about a run through Airflow's notifiers, as `notify` in the YAML configures.

A failing notifier fails no task. The notifiers follow from the YAML alone, never from a run's conf,
because a user who may start a run may not choose a class to be called.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk.configuration import conf
from pydantic import BaseModel, ConfigDict

from pipeline_ops.config.notify import Event, make_notifier
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.preprocess import Drift
from pipeline_ops.config.run_conf import load_run_config_or_author
from pipeline_ops.contract.dataset import STATISTICS
from pipeline_ops.contract.manifest import find_file, read_manifest
from pipeline_ops.contract.outcome import describe_outcome, read_facts
from pipeline_ops.contract.results import EvaluationFigures, RuleVerdict
from pipeline_ops.contract.run_summary import read_summary
from pipeline_ops.contract.task_record import find_recorded_manifest
from pipeline_ops.errors import TrainyardError
from pipeline_ops.orchestration.task_run import TaskRun
from pipeline_ops.storage.store_path import StorePath

if TYPE_CHECKING:
    from airflow.sdk import Context

_log = logging.getLogger(__name__)
_MAX_STATISTICS_BYTES = 256 << 20
_TITLES = {
    "failed": "run failed",
    "gate_not_passed": "gate not passed",
    "drift": "the data has drifted",
}


class Notification(BaseModel):
    """One event of one run, with a link to the report in Airflow's UI.

    `rules` are the gate's, or the features' for `drift`.
    """

    model_config = ConfigDict(frozen=True)

    event: Event
    pipeline: str
    run_id: str
    verdict: str
    rules: list[RuleVerdict] = []
    link: str

    @property
    def title(self) -> str:
        return f"{self.pipeline}: {_TITLES[self.event]}"

    @property
    def text(self) -> str:
        """The notification as plain text."""
        rules = [f"{'passed' if rule.passed else 'FAILED'}  {rule.text}" for rule in self.rules]
        return "\n".join(
            [self.title, f"run {self.run_id}", "", self.verdict, *rules, "", self.link]
        )

    @property
    def html(self) -> str:
        """The same as HTML for a mail, with all texts escaped."""
        *lines, link = map(escape, self.text.splitlines())
        return f'<pre>{chr(10).join(lines)}\n<a href="{link}">{link}</a></pre>'


def build_report_url(config: PipelineConfig, run_id: str) -> str:
    """Builds the address of a run's report alone, which a phone can show, too."""
    base = conf.get("api", "base_url", fallback="http://localhost:8080").rstrip("/")
    run = quote(run_id, safe="")
    return f"{base}/trainyard/pipelines/{config.pipeline}/report?run_id={run}"


def build_task_callback_kwargs(config: PipelineConfig) -> dict[str, Any]:
    """Builds the arguments of an operator that send a notification as soon as its task fails."""
    if not config.notify:
        return {}
    return {"on_failure_callback": functools.partial(notify_failure, str(config.file))}


def notify_failure(config_file: str, context: Context) -> None:
    """Called by Airflow when a task has failed for good. The summary of the run has the reason."""
    dag_run = context.get("dag_run")
    config = load_run_config_or_author(config_file, dag_run.conf if dag_run else None)
    run = TaskRun(config, context)
    task = getattr(context.get("ti"), "task_id", "the run")
    reason = context.get("exception") or context.get("reason") or "ended by Airflow"
    verdict, started = f"{task}: {reason}", getattr(dag_run, "start_date", None)
    with contextlib.suppress(TrainyardError):
        summary = read_summary(run.layout, run.run_id)
        if summary and started and summary.started == started.timestamp():
            verdict = " ".join([summary.outcome.sentence, summary.outcome.next_step]).strip()
    _notify(run, "failed", verdict)


def notify_gate(run: TaskRun, evaluation: StorePath) -> None:
    """Sends a notification if the evaluation with this manifest has not passed the gate."""
    if not _is_configured(run.config, "gate_not_passed"):
        return
    figures = EvaluationFigures.model_validate(read_manifest(evaluation).figures)
    if not figures.gate_passed:
        facts = read_facts(run.layout, run.run_id)
        records = dict(facts.records) | {"export": None}  # One of an earlier try.
        outcome = describe_outcome(dataclasses.replace(facts, records=records))
        _notify(run, "gate_not_passed", outcome.sentence, figures.rules)


def notify_drift(run: TaskRun, dataset: StorePath) -> None:
    """Sends a notification if the data set with this manifest is too far from the champion's.

    A run that fails because of drift sends `failed` instead.
    """
    if not _is_configured(run.config, "drift"):
        return
    file = find_file(dataset, STATISTICS)
    statistics = json.loads(file.read(_MAX_STATISTICS_BYTES)) if file else {}
    limits = run.config.preprocess.drift
    rules = [
        _to_rule_verdict(distance, limits)
        for distance in (statistics.get("comparison") or {"drift": []})["drift"]
        if distance["jensen_shannon"] > limits.max_js_distance
        or distance["l_infinity"] > limits.max_linf_distance
    ]
    if rules:
        names = ", ".join(str(rule.subject) for rule in rules)
        verdict = f"further from the champion's data than preprocess.drift allows: {names}"
        _notify(run, "drift", verdict, rules)


def notify_skew(run: TaskRun, evaluation: StorePath) -> None:
    """Sends a notification if the requests in production are too far from the training data.

    The limits are those of `preprocess.drift`. Nothing is compared unless the config asks for it.
    """
    if not _is_configured(run.config, "drift") or not run.config.evaluate.serving_comparison:
        return
    serving = EvaluationFigures.model_validate(read_manifest(evaluation).figures).serving
    limits = run.config.preprocess.drift
    rules = [
        _to_rule_verdict(distance.model_dump(), limits, "serving_skew")
        for distance in (serving.distances if serving else [])
        if distance.jensen_shannon > limits.max_js_distance
        or distance.l_infinity > limits.max_linf_distance
    ]
    if rules:
        names = ", ".join(str(rule.subject) for rule in rules)
        verdict = (
            "the requests in production are further from the training data than preprocess.drift "
            f"allows: {names}"
        )
        _notify(run, "drift", verdict, rules)


def _to_rule_verdict(
    distance: Mapping[str, Any], limits: Drift, metric: str = "drift"
) -> RuleVerdict:
    feature, js, linf = distance["feature"], distance["jensen_shannon"], distance["l_infinity"]
    verb = "has drifted" if metric == "drift" else "differs from training"
    return RuleVerdict(
        metric=metric,
        subject=feature,
        passed=False,
        text=f"{feature} {verb}: Jensen-Shannon {js:.3f} "
        f"(at most {limits.max_js_distance:g}), L-infinity {linf:.3f} "
        f"(at most {limits.max_linf_distance:g})",
        value=js,
        bound=limits.max_js_distance,
    )


def _notify(
    run: TaskRun, event: Event, verdict: str, rules: Sequence[RuleVerdict] | None = None
) -> None:
    """Calls all notifiers of the event. An error of one is logged and fails nothing."""
    if not _is_configured(run.config, event):
        return
    if rules is None:
        rules = []
        with contextlib.suppress(TrainyardError):  # the evaluation may be gone
            if manifest := find_recorded_manifest(run.layout, run.run_id, "evaluate", "evaluate"):
                rules = EvaluationFigures.model_validate(read_manifest(manifest).figures).rules
    notification = Notification(
        event=event,
        pipeline=run.config.pipeline,
        run_id=run.run_id,
        verdict=verdict,
        link=build_report_url(run.config, run.run_id),
        rules=list(rules),
    )
    for notify in run.config.notify:
        if event in notify.events:
            try:
                make_notifier(notify)({**run.context, "notification": notification})
                _log.info("%s was sent by %s", event, notify.notifier)
            except Exception:  # of code that is not ours
                _log.exception("%s was not sent by %s", event, notify.notifier)


def _is_configured(config: PipelineConfig, event: Event) -> bool:
    return any(event in notify.events for notify in config.notify)
