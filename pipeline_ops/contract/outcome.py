"""What has become of a run, in one sentence, and the summary that a run leaves in the store.

Pages, the table of runs, the note of Airflow's run, notifications and the command print the same
sentence. It says what the run has done, and stays true when another version comes into service.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.results import EvaluationFigures, ModelFigures, format_figure
from pipeline_ops.contract.task_record import TaskRecord, read_record
from pipeline_ops.errors import DataError, ExitCode
from pipeline_ops.storage.parsing import JsonModel
from pipeline_ops.storage.request_cache import cache_requests, map_requests

Kind = Literal[
    "running",
    "waiting",
    "published",
    "not_in_service",
    "unchanged",
    "refused",
    "rejected",
    "unanswered",
    "failed",
    "data_refused",
    "out_of_date",
    "cancelled",
]
ENDING_EVENTS = ("patch_dag_run", "patch_task_instance")
"""The events of Airflow's audit log by which users end runs and tasks."""
OUTCOME_KEY = "trainyard_outcome"
"""The XCom with the sentence of a run, which becomes the note of Airflow's run."""
_COMPARED = ("preprocess", "train", "evaluate")
"""The tasks whose results the gate judges."""
_RECORDED = ("preprocess", "search", "train", "evaluate", "export")
_MAX_MESSAGE = 300
_SUMMARY_BYTES = 1 << 20
_SAME_SECONDS = 0.01


class RunOutcome(JsonModel):
    """What has become of a run. `sentence` is plain text, and ends with a full stop."""

    model_config = ConfigDict(frozen=True)

    kind: Kind
    sentence: str
    reason: str = ""
    """The rules that were not fulfilled, or the whole message of the error. May be empty."""
    next_step: str = ""
    """What a person does next, as a sentence. Empty if there is nothing to do."""


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """What is known of a run. A record is None if its task has none, or one of an earlier try."""

    records: Mapping[str, TaskRecord | None]
    """By task, without trials."""
    is_finished: bool = True
    failed: str = ""
    """The first task that has failed, or was ended. Empty if there is none."""
    current: str = ""
    """Of a run that is not finished, the task that runs now. Empty before the first one."""
    evaluation: EvaluationFigures | None = None
    model: ModelFigures | None = None
    dataset: DatasetFigures | None = None
    root: str = ""
    """The storage root, which messages need not repeat."""
    is_waiting: bool = False
    """Whether the run waits for a person's decision."""
    waits_until: dt.datetime | None = None
    ended_by: str = ""
    """The user who has ended the run or its task in Airflow."""


def read_facts(layout: Layout, run_id: str, tries: Mapping[str, int] | None = None) -> RunFacts:
    """Reads what a finished run has left. `tries` are the numbers of the tasks' last tries.

    Raises DataError for a damaged record. A manifest that has been removed since counts as none.
    """
    with cache_requests():
        records = map_requests(
            lambda task: read_record(layout.task_record(run_id, task)), _RECORDED
        )
        found = {
            task: record if record and record.is_of_try((tries or {}).get(task)) else None
            for task, record in zip(_RECORDED, records, strict=True)
        }
        figures = map_requests(lambda task: _read_figures(layout, task, found[task]), (*_FIGURES,))
    dataset, evaluation, model = figures
    return RunFacts(
        found, evaluation=evaluation, model=model, dataset=dataset, root=str(layout.root)
    )


_FIGURES: Mapping[str, type[BaseModel]] = {
    "preprocess": DatasetFigures,
    "evaluate": EvaluationFigures,
    "export": ModelFigures,
}


def _read_figures(layout: Layout, task: str, record: TaskRecord | None) -> Any:
    if record is None or record.state != "success" or record.manifest is None:
        return None
    with contextlib.suppress(DataError, ValidationError):
        manifest = read_manifest(layout.check_manifest(task, record.manifest))
        return _FIGURES[task].model_validate(manifest.figures)
    return None


def describe_outcome(facts: RunFacts) -> RunOutcome:
    """Describes a run. `RunFacts` is all that the sentence depends on."""
    if not facts.is_finished:
        return _describe_unfinished(facts)
    if facts.failed:
        return _describe_failure(facts)
    export = facts.records.get("export")
    if export and export.state == "success" and facts.model:
        return _describe_published(facts, export, facts.model)
    stays = _describe_champion(facts.evaluation)
    if export and export.unpublished == "rejected":
        comment = f': "{export.message}"' if export.message else ""
        sentence = f"Rejected by {export.rejected_by or 'a person'}{comment}. {stays}"
        return RunOutcome(kind="rejected", sentence=sentence)
    if export and export.unpublished == "unanswered":
        return RunOutcome(
            kind="unanswered",
            sentence=f"Not published, because nobody answered in time. {stays}",
            next_step="Clear the task approve, and answer under Required Actions.",
        )
    if facts.evaluation and not facts.evaluation.gate_passed:
        reasons = list_reasons(facts.evaluation)
        if maker := _find_maker(facts.records, _COMPARED):
            return _describe_unchanged(maker, f"the gate refused: {reasons[0]}")
        more = len(reasons) - 1
        others = f" (and {more} more rule{'s' * (more > 1)})" if more else ""
        return RunOutcome(
            kind="refused",
            sentence=f"Refused by the gate: {reasons[0]}{others}. {stays}",
            reason="; ".join(reasons),
        )
    return RunOutcome(
        kind="cancelled",
        sentence=f"Ended without a published version. {stays}",
        next_step="Clear the task export to try it again.",
    )


def list_reasons(evaluation: EvaluationFigures) -> list[str]:
    """Returns why the gate was not passed, one clause a reason, the most important one first."""
    reasons = [rule.text for rule in evaluation.rules if not rule.passed]
    if not evaluation.as_served.passed:
        reasons.append(evaluation.as_served.text)
    return reasons or ["its rules were not fulfilled"]


def _describe_unfinished(facts: RunFacts) -> RunOutcome:
    if facts.is_waiting:
        until = f" until {facts.waits_until:%Y-%m-%d %H:%M} UTC" if facts.waits_until else ""
        return RunOutcome(
            kind="waiting",
            sentence=f"Waits for your decision{until}: publish this model, or reject it.",
            next_step="Answer under Required Actions.",
        )
    now = f"Running: {facts.current}." if facts.current else "Running: no task at this moment."
    return RunOutcome(kind="running", sentence=now)


def _describe_failure(facts: RunFacts) -> RunOutcome:
    task, record = facts.failed, facts.records.get(facts.failed)
    has_message = record is not None and record.state == "failed"
    was_ended = record is not None and record.exit_code == ExitCode.CANCELLED
    if was_ended or (facts.ended_by and not has_message):
        by = f" by {facts.ended_by}" if facts.ended_by else ", by a signal to its job,"
        return RunOutcome(
            kind="cancelled",
            sentence=f"Cancelled{by} in {task}. Nothing was published.",
            next_step=f"Clear the task {task}, and the run goes on with what is done.",
        )
    if record is None or not has_message:
        return RunOutcome(
            kind="failed",
            sentence=f"Failed in {task}, which left no message. The log in Airflow says more.",
            next_step=f"Clear the task {task}, and the run goes on with what is done.",
        )
    message = _shorten(record.hide_folders(record.problem, facts.root))
    if record.exit_code == ExitCode.OUT_OF_DATE:
        return RunOutcome(
            kind="out_of_date",
            sentence=f"Out of date: {message}",
            next_step="Trigger a new run, which compares with the version in service.",
        )
    if task == "preprocess" and record.exit_code == ExitCode.DATA:
        return RunOutcome(
            kind="data_refused",
            sentence=f"Data refused: {message}",
            reason=record.message,
            next_step="Correct the data, then clear the task preprocess.",
        )
    return RunOutcome(
        kind="failed",
        sentence=f"Failed in {task}: {message}",
        reason=record.message,
        next_step=f"Correct it, then clear the task {task}: the run goes on with what is done.",
    )


def _describe_published(facts: RunFacts, export: TaskRecord, model: ModelFigures) -> RunOutcome:
    if maker := _find_maker(facts.records, (*_COMPARED, "export")):
        return _describe_unchanged(maker, f"published version {model.version}")
    version, figures = f"version {model.version} of {model.name}", facts.evaluation
    compared = f" ({_compare(figures)})" if figures else ""
    if model.not_in_service:
        return RunOutcome(
            kind="not_in_service",
            sentence=f"Published as {version}, not in service: {model.not_in_service}.",
            next_step="Put it in service on the page Models, if it should be.",
        )
    return RunOutcome(kind="published", sentence=f"Published as {version}, in service{compared}.")


def _compare(figures: EvaluationFigures) -> str:
    """Names the gate's first metric of both models: `accuracy 0.9900, version 2 has 0.9860`."""
    ours = figures.challenger.metrics
    judged = (rule.metric for rule in figures.rules if not rule.subject and rule.metric in ours)
    metric = next(judged, next(iter(ours)))
    theirs = figures.champion.metrics.get(metric) if figures.champion else None
    text = f"{metric} {format_figure(ours[metric])}"
    if theirs is None or figures.champion_version is None:
        return f"{text}, and there was no version to compare it with"
    return f"{text}, version {figures.champion_version} has {format_figure(theirs)}"


def _find_maker(
    records: Mapping[str, TaskRecord | None], tasks: tuple[str, ...]
) -> TaskRecord | None:
    """Returns the record of the last of some tasks if all of them found their result.

    With a search, `train` only chooses. Its choice is the same if the trials are and if the
    evaluation of the chosen model was found.
    """
    search = records.get("search")
    names = ["search" if task == "train" and search else task for task in tasks]
    found = [records.get(name) for name in names]
    return found[-1] if all(record and record.cached for record in found) else None


def _describe_unchanged(record: TaskRecord, what: str) -> RunOutcome:
    made_by = record.made_by
    run = f"the run of {made_by.time:%Y-%m-%d %H:%M} UTC" if made_by else "an earlier run"
    sentence = f"Unchanged: data, config and code are those of {run}, which {what}."
    return RunOutcome(kind="unchanged", sentence=sentence)


def _describe_champion(figures: EvaluationFigures | None) -> str:
    version = figures.champion_version if figures else None
    return "Nothing was published." if version is None else f"Version {version} stays in service."


def _shorten(message: str) -> str:
    """Returns the first line of a message, with a full stop."""
    text = (message.strip() or "no message").splitlines()[0].rstrip(":")
    if len(text) > _MAX_MESSAGE:
        text = text[: _MAX_MESSAGE - 1].rstrip() + "…"
    return text if text.endswith((".", "…", "!", "?")) else f"{text}."


def is_ending_event(event: str, extra: str | None) -> bool:
    """Returns whether an entry of Airflow's audit log says that a user marked something failed."""
    try:
        body = json.loads(extra or "{}")
    except ValueError:
        return False
    states = (body.get("state"), body.get("new_state")) if isinstance(body, dict) else ()
    return event in ENDING_EVENTS and "failed" in states


def find_failed(states: Mapping[str, str], run_state: str) -> str:
    """Finds the first failed task by Airflow's states, in the order of the DAG.

    Returns "" if the run has not failed. A run that has failed without a failed task, as at its
    timeout, has the first task that was not done.
    """
    if run_state != "failed":
        return ""
    failed = (task for task, state in states.items() if state == "failed")
    not_done = (task for task, state in states.items() if state != "success")
    return next(failed, next(not_done, "export"))
