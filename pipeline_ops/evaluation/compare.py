"""Comparison of two runs of a pipeline: rows for a terminal, and a self-contained HTML page.

Everything comes from the outputs of the runs: their records, manifests and `metrics.json`. No model
runs again, so the figures of two runs are only comparable if both had the same test split. If they
had different ones, both table and page say so. Used by `trainyard compare`. Imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from pipeline_ops.artifacts.dataset import SPLITS, DatasetFigures
from pipeline_ops.artifacts.manifest import Manifest, read_manifest
from pipeline_ops.artifacts.results import METRICS, TEST_SPLIT, EvaluationFigures, TrainingFigures
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.lineage import told
from pipeline_ops.evaluation.report_rows import metric_title, sense_of
from pipeline_ops.evaluation.scores import RECALLS
from pipeline_ops.evaluation.svg import Line, line_chart, share_chart
from pipeline_ops.jobs.task_record import read_record
from pipeline_ops.pages.page import render_page
from pipeline_ops.storage.atomic import read_json

_JOBS = ("preprocess", "train", "evaluate")
_MAX_CLASSES = 100
_HEADLINES = {"classification": ("accuracy", "accuracy"), "detection": ("map_50", "mAP@0.5")}
"""The headline metric of each task, and its name."""
_STYLES = ("champion", "validation")
"""The styles of the first and of the second run, in all drawings."""


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """The outputs of one run. `precision` is the mean curve over classes, float [101]."""

    name: str
    manifests: dict[str, Manifest]
    evaluation: EvaluationFigures
    training: TrainingFigures
    dataset: DatasetFigures
    precision: np.ndarray
    top_k: int

    @property
    def verdict(self) -> str:
        return "gate passed" if self.evaluation.gate_passed else "gate not passed"


def read_run(folder: Path) -> ComparedRun:
    """Reads the outputs of a run.

    Raises:
      DataError: the run did not finish its evaluation, or its outputs are gone.
    """
    records = {job: read_record(folder / f"{job}.json") for job in _JOBS}
    for job, record in records.items():
        if record is None or record.manifest is None:
            raise DataError(
                f"{folder}: this run has no {job} that ended well, so there is nothing to compare"
            )
    manifests = {job: read_manifest(record.manifest) for job, record in records.items()}
    metrics = read_json(Path(records["evaluate"].manifest).parent / METRICS)
    if not metrics or not metrics.get("precision_at_recall"):
        raise DataError(
            f"{records['evaluate'].manifest}: there is no {METRICS} beside it, "
            "or one of another version; run the evaluation again"
        )
    return ComparedRun(
        name=folder.name,
        manifests=manifests,
        evaluation=EvaluationFigures.model_validate(manifests["evaluate"].figures),
        training=TrainingFigures.model_validate(manifests["train"].figures),
        dataset=DatasetFigures.model_validate(manifests["preprocess"].figures),
        precision=np.mean(list(metrics["precision_at_recall"][0].values()), axis=0),
        top_k=manifests["evaluate"].fingerprint.config["top_k"],
    )


def have_one_test_split(first: ComparedRun, second: ComparedRun) -> bool:
    digests = [
        run.manifests["evaluate"].fingerprint.inputs.get(TEST_SPLIT) for run in (first, second)
    ]
    return digests[0] is not None and digests[0] == digests[1]


def metric_rows(first: ComparedRun, second: ComparedRun) -> list[dict[str, Any]]:
    """Returns a row for each metric that both runs have, in the order of the second run.

    `top_k_accuracy` with a different k is a different metric.
    """
    ours, theirs = second.evaluation.challenger, first.evaluation.challenger
    incomparable = {"top_k_accuracy"} if first.top_k != second.top_k else set()
    return [
        {
            "metric": name,
            "name": metric_title(name, second.top_k)[0],
            "first": theirs.metrics[name],
            "second": value,
            "difference": value - theirs.metrics[name],
            "sense": sense_of(name),
            "first_interval": theirs.intervals.get(name),
            "second_interval": ours.intervals.get(name),
        }
        for name, value in ours.metrics.items()
        if name in theirs.metrics and name not in incomparable
    ]


def fact_rows(first: ComparedRun, second: ComparedRun) -> list[tuple[str, str, str]]:
    """Returns facts about the runs: a name, and the value for the first and the second run."""

    def facts(run: ComparedRun) -> dict[str, str]:
        training = run.training
        return {
            "Gate": run.verdict,
            "Champion": "none"
            if run.evaluation.champion_version is None
            else f"version {run.evaluation.champion_version}",
            **{
                f"{split.capitalize()} images": f"{run.dataset.num_examples.get(split, 0):,}"
                for split in SPLITS
            },
            "Rejected": f"{run.dataset.num_rejected:,}",
            "Classes": str(len(run.dataset.class_names)),
            "Parameters": f"{training.num_parameters:,}",
            "Strategy": training.strategy.replace("_", " "),
            "Workers": str(training.workers),
            "Steps": f"{training.steps:,}",
            "Epochs": str(len(training.history)),
            "Restarts": str(training.restarts),
            "Training": f"{training.seconds:.1f} s",
            "Size of the model": (
                f"{run.evaluation.challenger.measures.get('model_bytes', 0):,.0f} bytes"
            ),
        }

    ours, theirs = facts(second), facts(first)
    return [(name, theirs[name], ours[name]) for name in ours]


def changes(first: ComparedRun, second: ComparedRun) -> dict[str, list[str]]:
    """Returns the changes in the second run, in lines for each job."""
    return {
        job: told(second.manifests[job].fingerprint, first.manifests[job].fingerprint)
        for job in _JOBS
    }


def render_comparison(pipeline: str, first: ComparedRun, second: ComparedRun) -> str:
    """Returns the page as text to be written in UTF-8. The same runs give the same bytes."""
    here = Path(__file__).parent
    return render_page(
        here / "compare.html",
        [here / "report.css"],
        headline=_HEADLINES[second.training.task],
        title=f"{pipeline}: {first.name} and {second.name}",
        pipeline=pipeline,
        runs=(first, second),
        line_styles=_STYLES,
        has_one_test_split=have_one_test_split(first, second),
        metrics=metric_rows(first, second),
        facts=fact_rows(first, second),
        changes=changes(first, second),
        charts=_charts(first, second),
        classes=_class_rows(first, second),
    )


def _charts(first: ComparedRun, second: ComparedRun) -> list[tuple[str, Any]]:
    runs = list(zip((first, second), _STYLES, strict=True))
    names = [name for name in _curve_names(second) if name in _curve_names(first)]
    drawn = []
    for name in names:
        lines = [
            Line(
                run.name,
                style,
                [(epoch.epoch + 1, epoch.metrics[name]) for epoch in run.training.history],
            )
            for run, style in runs
        ]
        title = name.replace("_", " ").capitalize()
        drawn.append(
            (
                title,
                line_chart(
                    f"{title} by epoch",
                    lines,
                    **({"at_least": 0.0} if name.endswith("loss") else {}),
                ),
            )
        )
    curves = [
        Line(run.name, style, list(zip(RECALLS.tolist(), run.precision.tolist(), strict=True)))
        for run, style in runs
    ]
    return [
        *drawn,
        (
            "Precision and recall",
            share_chart("Precision against recall, mean of all classes", "recall", curves),
        ),
    ]


def _curve_names(run: ComparedRun) -> list[str]:
    return [
        name
        for name in (run.training.history[0].metrics if run.training.history else {})
        if name.startswith("validation_")
    ]


def _class_rows(first: ComparedRun, second: ComparedRun) -> list[dict[str, Any]]:
    """Returns the classes that both runs have.

    Of more than `_MAX_CLASSES`, only those whose recall differs most are returned.
    """
    theirs = {figures.name: figures for figures in first.evaluation.challenger.classes}
    rows = [
        {
            "name": ours.name,
            "first": theirs[ours.name],
            "second": ours,
            "difference": ours.recall - theirs[ours.name].recall,
        }
        for ours in second.evaluation.challenger.classes
        if ours.name in theirs
    ]
    return (
        rows
        if len(rows) <= _MAX_CLASSES
        else sorted(rows, key=lambda row: -abs(row["difference"]))[:_MAX_CLASSES]
    )
