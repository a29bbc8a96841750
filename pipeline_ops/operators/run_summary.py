"""The content of a notification: the event, the verdict in a sentence, the rules and their values.

This module sends nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from html import escape
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline_ops.artifacts.dataset import STATISTICS
from pipeline_ops.artifacts.manifest import find_file, read_manifest
from pipeline_ops.artifacts.results import EvaluationFigures, RuleVerdict
from pipeline_ops.config.notify import Event
from pipeline_ops.config.preprocess import Drift
from pipeline_ops.errors import TrainyardError
from pipeline_ops.jobs.task_record import TaskRecord, find_recorded_manifest, read_record
from pipeline_ops.operators.task_run import TaskRun
from pipeline_ops.planning.job_kinds import JOBS
from pipeline_ops.storage.store_path import StorePath

_TITLES = {
    "failed": "run failed",
    "gate_not_passed": "gate not passed",
    "drift": "the data has drifted",
    "late": "run is late",
}


class Notification(BaseModel):
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


_MAX_STATISTICS_BYTES = 256 << 20


def explain_failure(run: TaskRun, default: str) -> str:
    """Returns the reason why a run has failed: the message of its first failed task.

    It is `default` if Airflow has ended the run.
    """
    for task, record in _read_records(run).items():
        if record.state == "failed":
            return f"{task}: {record.message}"
    return default


def list_finished_tasks(run: TaskRun) -> list[str]:
    """Lists the tasks of a run that have succeeded."""
    return [task for task, record in _read_records(run).items() if record.state == "success"]


def read_gate_rules(run: TaskRun) -> list[RuleVerdict]:
    """Reads the gate's verdict on a run, if the run has come so far."""
    try:
        manifest = find_recorded_manifest(run.layout, run.run_id, "evaluate", "evaluate")
        if manifest is None:
            return []
        return EvaluationFigures.model_validate(read_manifest(manifest).figures).rules
    except TrainyardError:  # the artifact is gone, and the notification goes out without it
        return []


def find_drifted_features(manifest: StorePath, limits: Drift) -> list[RuleVerdict]:
    """Returns a rule for each feature that is further from the reference than allowed."""
    file = find_file(manifest, STATISTICS)
    statistics = json.loads(file.read(_MAX_STATISTICS_BYTES)) if file else {}
    return [
        _to_rule_verdict(distance, limits)
        for distance in (statistics.get("comparison") or {"drift": []})["drift"]
        if distance["jensen_shannon"] > limits.max_js_distance
        or distance["l_infinity"] > limits.max_linf_distance
    ]


def _read_records(run: TaskRun) -> dict[str, TaskRecord]:
    """Reads the records of a run's tasks, in the order of the jobs.

    Damaged ones are left out. The notification goes out without them.
    """
    records = {}
    for task in JOBS:
        with contextlib.suppress(TrainyardError):
            if record := read_record(run.layout.task_record(run.run_id, task)):
                records[task] = record
    return records


def _to_rule_verdict(distance: Mapping[str, Any], limits: Drift) -> RuleVerdict:
    feature, js, linf = distance["feature"], distance["jensen_shannon"], distance["l_infinity"]
    return RuleVerdict(
        metric="drift",
        subject=feature,
        passed=False,
        text=f"{feature} has drifted: Jensen-Shannon {js:.3f} "
        f"(at most {limits.max_js_distance:g}), L-infinity {linf:.3f} "
        f"(at most {limits.max_linf_distance:g})",
        value=js,
        bound=limits.max_js_distance,
    )
