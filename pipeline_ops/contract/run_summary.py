"""The summary that a run leaves in the store, and the table of all runs.

The task that ends a run writes it, as one small file, so that a table of many runs reads little.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from pipeline_ops.contract.layout import SUMMARY, Layout, parse_artifact_uri
from pipeline_ops.contract.outcome import RunFacts, RunOutcome, describe_outcome, read_facts
from pipeline_ops.contract.results import EvaluationFigures
from pipeline_ops.errors import DataError
from pipeline_ops.storage.local_files import format_json
from pipeline_ops.storage.parsing import JsonModel, read_json_as
from pipeline_ops.storage.request_cache import map_requests

_SUMMARY_BYTES = 1 << 20
_SAME_SECONDS = 0.01


class MetricSummary(JsonModel):
    """A metric that the gate has judged. `low` and `high` are the difference's 95 % interval."""

    value: float
    champion: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def difference(self) -> str:
        """The difference to the champion with its sign, or "" without a champion."""
        if self.champion is None:
            return ""
        return f"{self.value - self.champion:+.4f}".replace("-", "\N{MINUS SIGN}")

    @property
    def is_within_noise(self) -> bool:
        """Whether the interval of the difference has zero in it."""
        return self.low is None or self.high is None or self.low <= 0 <= self.high


class TaskSummary(JsonModel):
    """How one task has ended."""

    state: str
    cached: bool = False
    fingerprint: str = ""


class RunSummary(JsonModel):
    """One finished run, for tables: about 1 kB. Times are in seconds since 1970."""

    run_id: str = Field(max_length=1000)
    outcome: RunOutcome
    started: float | None = None
    ended: float
    triggered_by: str = ""
    metrics: dict[str, MetricSummary] = {}
    version: int | None = None
    champion: int | None = None
    """The version in service at the evaluation."""
    num_examples: dict[str, int] = {}
    num_rejected: int = 0
    num_came: int | None = None
    """The images that came since the previous data set. None if it is unknown, or if the run made
    no data set."""
    num_left: int | None = None
    tasks: dict[str, TaskSummary] = {}
    values: dict[str, Any] = {}
    """What the run has set by its conf, by key."""

    @property
    def moves(self) -> str:
        """The images that came and left, as `▲50 ▼12`, or "" if none did."""
        came, left = self.num_came or 0, self.num_left or 0
        return f"▲{came:,} ▼{left:,}" if came or left else ""


def summarize(facts: RunFacts, run_id: str, **about: Any) -> RunSummary:
    """Summarizes a run that has ended now. `about` are fields that Airflow knows."""
    evaluation, model, dataset = facts.evaluation, facts.model, facts.dataset
    preprocessed = facts.records.get("preprocess")
    made = dataset if preprocessed and not preprocessed.cached else None
    return RunSummary(
        run_id=run_id,
        outcome=describe_outcome(facts),
        ended=time.time(),
        metrics=_summarize_metrics(evaluation) if evaluation else {},
        version=model.version if model else None,
        champion=evaluation.champion_version if evaluation else None,
        num_examples=dataset.num_examples if dataset else {},
        num_rejected=dataset.num_rejected if dataset else 0,
        num_came=made.came if made else None,
        num_left=made.left if made else None,
        tasks={
            task: TaskSummary(
                state=record.state,
                cached=record.cached,
                fingerprint=place[2]
                if (place := parse_artifact_uri(record.manifest or ""))
                else "",
            )
            for task, record in facts.records.items()
            if record
        },
        **about,
    )


def _summarize_metrics(figures: EvaluationFigures) -> dict[str, MetricSummary]:
    """Returns the metrics that the gate has judged on the whole test split, or else all."""
    ours, theirs = figures.challenger.metrics, figures.champion
    judged = [rule.metric for rule in figures.rules if not rule.subject and rule.metric in ours]
    return {
        name: MetricSummary(
            value=ours[name],
            champion=theirs.metrics.get(name) if theirs else None,
            **dict(zip(("low", "high"), figures.differences.get(name, ()), strict=False)),
        )
        for name in dict.fromkeys(judged or ours)
    }


def write_summary(layout: Layout, summary: RunSummary) -> None:
    layout.run_summary(summary.run_id).write(format_json(summary.model_dump(mode="json")))


def read_summary(layout: Layout, run_id: str) -> RunSummary | None:
    """The summary of a run, or None if it left none. Raises DataError if it is damaged."""
    return read_json_as(RunSummary, layout.run_summary(run_id), _SUMMARY_BYTES)


def find_outcome(
    layout: Layout, run_id: str, started: float | None, tries: Mapping[str, int], **state: Any
) -> RunOutcome:
    """Finds what has become of a run, by its summary or else by its records.

    `started` is when Airflow started the run, and `tries` are the numbers of its tasks' tries.
    `state` are the fields of `RunFacts` that Airflow knows. A summary from before the run was
    cleared does not count. Raises DataError for a damaged file.
    """
    if not state.get("is_finished", True):
        return describe_outcome(RunFacts({}, root=str(layout.root), **state))
    summary = read_summary(layout, run_id)
    if summary and is_same_start(summary.started, started):
        return summary.outcome
    return describe_outcome(dataclasses.replace(read_facts(layout, run_id, tries), **state))


def find_summary(
    layout: Layout, run_id: str, tries: Mapping[str, int], ended: float, **state: Any
) -> RunSummary:
    """Summarizes a run that has left no summary, from its records. See `find_outcome`."""
    if not state.get("is_finished", True):
        outcome = describe_outcome(RunFacts({}, root=str(layout.root), **state))
        return RunSummary(run_id=run_id, outcome=outcome, ended=ended)
    facts = dataclasses.replace(read_facts(layout, run_id, tries), **state)
    return summarize(facts, run_id).model_copy(update={"ended": ended})


def is_same_start(one: float | None, other: float | None) -> bool:
    """Returns whether two times are the same start of a run. None is no start."""
    return None not in (one, other) and abs((one or 0) - (other or 0)) < _SAME_SECONDS


@dataclasses.dataclass(frozen=True)
class RunList:
    """The newest runs of a pipeline first, and the problems of summaries that cannot be read."""

    runs: list[RunSummary]
    problems: list[str]
    num_older: int


def list_summaries(layout: Layout, newest: int) -> RunList:
    """Reads the newest summaries. Runs that were ended from outside have none."""
    folder = layout.runs
    found = sorted(folder.find_in_folders(SUMMARY), key=lambda entry: entry.modified, reverse=True)
    runs, problems = list[RunSummary](), list[str]()

    def read(name: str) -> RunSummary | str | None:
        try:
            return read_json_as(RunSummary, folder / name, _SUMMARY_BYTES)
        except DataError as error:
            return str(error)

    for each in map_requests(read, [entry.name for entry in found[:newest]]):
        if isinstance(each, RunSummary):
            runs.append(each)
        elif each:
            problems.append(each)
    return RunList(runs, problems, max(0, len(found) - newest))
