"""The content of a notification: the event, the verdict in a sentence, the rules and their values.

This module sends nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipeline_ops.artifacts.dataset import STATISTICS
from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.artifacts.results import EvaluationFigures, RuleVerdict
from pipeline_ops.config.notify import Event
from pipeline_ops.config.preprocess import Drift
from pipeline_ops.errors import TrainyardError
from pipeline_ops.jobs.task_record import TaskRecord, read_record, recorded_manifest
from pipeline_ops.planning.job_kinds import JOBS

_TITLES = {
    "failed": "run failed",
    "gate_not_passed": "gate not passed",
    "drift": "the data has drifted",
    "late": "run is late",
}


class Notice(BaseModel):
    """One event of one run.

    `link` leads to the report in Airflow's UI. `rules` are the gate's, or for `drift` those of the
    features.
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
        """Plain lines."""
        rules = [f"{'passed' if rule.passed else 'FAILED'}  {rule.text}" for rule in self.rules]
        return "\n".join(
            [self.title, f"run {self.run_id}", "", self.verdict, *rules, "", self.link]
        )

    @property
    def html(self) -> str:
        """The same as HTML for a mail. Messages and class names are escaped."""
        *lines, link = map(escape, self.text.splitlines())
        return f'<pre>{chr(10).join(lines)}\n<a href="{link}">{link}</a></pre>'


def failure_of(layout: Layout, run_id: str, otherwise: str) -> str:
    """The reason why a run has failed: the message of its first failed task.

    It is `otherwise` if Airflow has ended the run.
    """
    for task in JOBS:
        record = _record(layout, run_id, task)
        if record and record.state == "failed":
            return f"{task}: {record.message}"
    return otherwise


def finished_tasks(layout: Layout, run_id: str) -> list[str]:
    """The tasks of a run that have succeeded."""
    records = {task: _record(layout, run_id, task) for task in JOBS}
    return [task for task, record in records.items() if record and record.state == "success"]


def rules_of(layout: Layout, run_id: str) -> list[RuleVerdict]:
    """The gate's verdict on a run, if the run has come so far."""
    try:
        manifest = recorded_manifest(layout, run_id, "evaluate", "evaluate")
        return (
            EvaluationFigures.model_validate(read_manifest(manifest).figures).rules
            if manifest
            else []
        )
    except TrainyardError:  # the artifact is gone, and the notice goes out without it
        return []


def _record(layout: Layout, run_id: str, task: str) -> TaskRecord | None:
    """The record of a task; None also if the file is damaged: the notice goes out without it."""
    try:
        return read_record(layout.task_record(run_id, task), layout.root)
    except TrainyardError:
        return None


def drifted(manifest: str, limits: Drift) -> Sequence[RuleVerdict]:
    """A rule for each feature of a data set that is further from the reference than allowed."""
    comparison = json.loads((Path(manifest).parent / STATISTICS).read_bytes()).get(
        "comparison"
    ) or {"drift": []}
    return [
        _rule_of(distance, limits)
        for distance in comparison["drift"]
        if distance["jensen_shannon"] > limits.js_above
        or distance["l_infinity"] > limits.linf_above
    ]


def _rule_of(distance: dict, limits: Drift) -> RuleVerdict:
    js, linf = distance["jensen_shannon"], distance["l_infinity"]
    text = (
        f"{distance['feature']} has drifted: "
        f"Jensen-Shannon {js:.3f} (at most {limits.js_above:g}), "
        f"L-infinity {linf:.3f} (at most {limits.linf_above:g})"
    )
    return RuleVerdict(
        metric="drift",
        subject=distance["feature"],
        passed=False,
        text=text,
        value=js,
        bound=limits.js_above,
    )
