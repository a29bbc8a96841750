"""Sends notifications about a run through Airflow's notifiers, as `notify` in the YAML configures.

A notice is first a file in the run's folder, so there is one of each event, despite retries and
cleared tasks. Then it is sent. A notice that could not be sent stays there, is logged, and is sent
with the next notice of this run, or at the next try. A failing mail server fails no task. The
recipients follow from the YAML alone, never from a run's conf, because a user who may start a run
may not choose a class to be called.
"""

from __future__ import annotations

import copy
import datetime as dt
import functools
import importlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.sdk import AsyncCallback, DeadlineAlert, DeadlineReference
from airflow.sdk.configuration import conf
from asgiref.sync import sync_to_async

from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.artifacts.results import EvaluationFigures, RuleVerdict
from pipeline_ops.config.notify import Event, Notify
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.run_config import run_config_or_author
from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.operators.run_summary import Notice, drifted, failure_of, finished_tasks, rules_of
from pipeline_ops.storage.atomic import create_whole, exclusive_lock, write_whole
from pipeline_ops.storage.digest import digest_of
from pipeline_ops.storage.parsing import read_json_as

_REPORT = "{base}/dags/{dag}/runs/{run}/plugin/trainyard_report"
_LOCK_SECONDS = 120.0
"""The time that one sender waits for another one of the same run.

The triggerer, for example, sends the notice about a late run.
"""
_log = logging.getLogger(__name__)


def link_of_report(config: PipelineConfig, run_id: str) -> str:
    """The address of a run's report in Airflow's UI."""
    base = conf.get("api", "base_url", fallback="http://localhost:8080").rstrip("/")
    return _REPORT.format(base=base, dag=config.pipeline, run=quote(run_id, safe=""))


def terms_of_tasks(config: PipelineConfig) -> dict[str, Any]:
    """The arguments with which the operators send a notification as soon as a task fails."""
    return (
        {"on_failure_callback": functools.partial(tell_failure, str(config.file))}
        if config.notify
        else {}
    )


def terms_of_dag(config: PipelineConfig) -> dict[str, Any]:
    """The arguments with which the DAG sends notifications about a failed run and a late run.

    Its callback for failures covers a run that fails without a failing task.
    """
    terms = terms_of_tasks(config)
    if config.deadline_seconds is not None:
        callback = AsyncCallback(tell_late, {"config_file": str(config.file)})
        terms["deadline"] = DeadlineAlert(
            DeadlineReference.DAGRUN_QUEUED_AT,
            dt.timedelta(seconds=config.deadline_seconds),
            callback,
            name="deadline_seconds",
        )
    return terms


def tell_failure(config_file: str, context: Mapping[str, Any]) -> None:
    """Called by Airflow when a task, or the run, has failed for good."""
    run = context.get("dag_run")
    config = run_config_or_author(config_file, run.conf if run else None, context["run_id"])
    task = getattr(context.get("ti"), "task_id", "the run")
    otherwise = f"{task}: {context.get('exception') or context.get('reason') or 'ended by Airflow'}"
    _tell(
        config,
        context,
        context["run_id"],
        "failed",
        failure_of(Layout(config.root, config.pipeline), context["run_id"], otherwise),
    )


async def tell_late(config_file: str, context: Mapping[str, Any]) -> None:
    """Called in the triggerer when the deadline of a run is over, even if it has failed before."""
    run = context["dag_run"]
    if run["state"] not in ("success", "failed"):
        await sync_to_async(_tell_late)(
            run_config_or_author(config_file, run["conf"], run["dag_run_id"]),
            {**context, "run_id": run["dag_run_id"]},
        )


def tell_gate(config: PipelineConfig, context: Mapping[str, Any], evaluation: str) -> None:
    """Sends a notification if an evaluation's gate was not passed.

    The evaluation is given by its manifest's URI.
    """
    if not _is_wanted(config, "gate_not_passed"):
        return
    figures = EvaluationFigures.model_validate(read_manifest(evaluation).figures)
    if not figures.gate_passed:
        reasons = "; ".join(rule.text for rule in figures.rules if not rule.passed)
        _tell(
            config,
            context,
            context["run_id"],
            "gate_not_passed",
            f"trained, not published: {reasons}",
            figures.rules,
        )


def tell_drift(config: PipelineConfig, context: Mapping[str, Any], dataset: str) -> None:
    """Sends a notification if a data set is too far from the champion's.

    The data set is given by its manifest's URI. A failure that is caused by drift is reported as a
    failure.
    """
    if _is_wanted(config, "drift") and (rules := drifted(dataset, config.preprocess.drift)):
        names = ", ".join(rule.subject for rule in rules)
        _tell(
            config,
            context,
            context["run_id"],
            "drift",
            f"further from the champion's data than preprocess.drift allows: {names}",
            rules,
        )


def _tell_late(config: PipelineConfig, context: Mapping[str, Any]) -> None:
    done = (
        ", ".join(finished_tasks(Layout(config.root, config.pipeline), context["run_id"]))
        or "nothing yet"
    )
    verdict = (
        f"has not ended {config.deadline_seconds} s after it was queued, and goes on; done: {done}"
    )
    _tell(config, context, context["run_id"], "late", verdict)


def _tell(
    config: PipelineConfig,
    context: Mapping[str, Any],
    run_id: str,
    event: Event,
    verdict: str,
    rules: Sequence[RuleVerdict] | None = None,
) -> None:
    """Writes the notice, unless there is one, and sends all unsent notices of this run."""
    if not _is_wanted(config, event):
        return
    layout = Layout(config.root, config.pipeline)
    notice = Notice(
        event=event,
        pipeline=config.pipeline,
        run_id=run_id,
        verdict=verdict,
        link=link_of_report(config, run_id),
        rules=rules_of(layout, run_id) if rules is None else list(rules),
    )
    outbox = layout.notices(run_id)
    try:
        create_whole(outbox / f"{event}.json", notice.model_dump_json(indent=2).encode())
    except FileExistsError:
        _log.info("%s of this run has been told before", event)
    try:
        _send_all(config.notify, context, outbox)
    except MachineError as error:
        _log.error("%s stays in %s: %s", event, outbox, error)


def _is_wanted(config: PipelineConfig, event: Event) -> bool:
    return any(event in notify.events for notify in config.notify)


def _send_all(notifiers: Sequence[Notify], context: Mapping[str, Any], outbox: Path) -> None:
    with exclusive_lock(outbox / ".lock", "the sending of notices", _LOCK_SECONDS):
        for file in sorted(outbox.glob("*.json")):
            try:
                notice = read_json_as(Notice, outbox, file.name)
            except DataError as error:
                _log.error("%s; the other notices of this run are sent", error)
                continue
            for notify in notifiers:
                sent = file.with_suffix(f".{digest_of(notify.model_dump(mode='json'))[:12]}.sent")
                if (
                    notice.event in notify.events
                    and not sent.exists()
                    and _send(notify, notice, context)
                ):
                    write_whole(sent, b"")


def _send(notify: Notify, notice: Notice, context: Mapping[str, Any]) -> bool:
    """Sends a notice and returns whether that succeeded. The run continues if a notifier raises."""
    module, _, name = notify.notifier.rpartition(".")
    try:
        notifier = getattr(importlib.import_module(module), name)(**copy.deepcopy(notify.arguments))
        notifier({**context, "notice": notice})
    except Exception:
        _log.exception(
            "%s could not be told by %s; it is tried again with the next notice of this run",
            notice.event,
            notify.notifier,
        )
        return False
    _log.info("%s was told by %s", notice.event, notify.notifier)
    return True
