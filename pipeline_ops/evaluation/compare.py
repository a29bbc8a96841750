"""Comparison of two runs of a pipeline: rows for a terminal, and a self-contained HTML page.

All values come from the outputs of the runs: their records, manifests and `metrics.json`. No model
runs again, so figures are comparable only if both runs had the same test split. Table and page warn
about different splits. Used by `trainyard compare`. Imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pipeline_ops.contract.dataset import SPLITS, DatasetFigures
from pipeline_ops.contract.manifest import Manifest, find_file, read_manifest
from pipeline_ops.contract.results import (
    METRICS,
    TEST_SPLIT,
    ClassFigures,
    EvaluationFigures,
    TrainingFigures,
)
from pipeline_ops.contract.task_record import read_record
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.inputs import describe_changes, describe_data_changes
from pipeline_ops.evaluation.metrics import describe_metric, get_direction, to_recall_points
from pipeline_ops.pages.charts import Line, draw_line_chart, draw_share_chart
from pipeline_ops.pages.page import render_page
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.store_path import StorePath

_JOBS = ("preprocess", "train", "evaluate")
_HEADLINES = {"classification": ("accuracy", "accuracy"), "detection": ("map_50", "mAP@0.5")}
"""The headline metric of each task, and its name."""
_STYLES = ("champion", "validation")
"""The styles of the first and of the second run, in all drawings."""
_MAX_METRICS_BYTES = 256 << 20
_MAX_CLASS_ROWS = 100


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """The outputs of one run. `curves` are the precision-recall curves of its classes."""

    name: str
    manifests: dict[str, Manifest]
    evaluation: EvaluationFigures
    training: TrainingFigures
    dataset: DatasetFigures
    curves: dict[str, list[float]]
    top_k: int

    @property
    def verdict(self) -> str:
        return "gate passed" if self.evaluation.gate_passed else "gate not passed"


def read_run(folder: StorePath) -> ComparedRun:
    """Reads the outputs of a run.

    Raises DataError if it did not finish its evaluation, or if its outputs are gone.
    """
    manifests, metrics = {}, None
    for job in _JOBS:
        record = read_record(folder / f"{job}.json")
        if record is None or record.manifest is None:
            raise DataError(
                f"{folder}: {job} of this run did not succeed, so there is nothing to compare. "
                "Wait for the run, or name another one."
            )
        manifest = open_path(record.manifest, folder.options)
        manifests[job] = read_manifest(manifest)
        if job == "evaluate":
            file = find_file(manifest, METRICS)
            metrics = json.loads(file.read(_MAX_METRICS_BYTES)) if file else None
    if not metrics or not metrics.get("precision_at_recall"):
        raise DataError(
            f"{folder}: {METRICS} of its evaluation is missing or of another version. "
            "Run the evaluation again."
        )
    return ComparedRun(
        name=folder.name,
        manifests=manifests,
        evaluation=EvaluationFigures.model_validate(manifests["evaluate"].figures),
        training=TrainingFigures.model_validate(manifests["train"].figures),
        dataset=DatasetFigures.model_validate(manifests["preprocess"].figures),
        curves=metrics["precision_at_recall"][0],
        top_k=manifests["evaluate"].fingerprint.config["top_k"],
    )


def have_same_test_split(first: ComparedRun, second: ComparedRun) -> bool:
    digests = [
        run.manifests["evaluate"].fingerprint.inputs.get(TEST_SPLIT) for run in (first, second)
    ]
    return digests[0] is not None and digests[0] == digests[1]


def build_metric_rows(first: ComparedRun, second: ComparedRun) -> list[dict[str, Any]]:
    """Returns a row for each metric that both runs have, in the order of the second run.

    `top_k_accuracy` with a different k is a different metric.
    """
    second_model, first_model = second.evaluation.challenger, first.evaluation.challenger
    incomparable = {"top_k_accuracy"} if first.top_k != second.top_k else set()
    own = first.evaluation.own_modes | second.evaluation.own_modes
    return [
        {
            "name": describe_metric(name, second.top_k)[0],
            "first": first_model.metrics[name],
            "second": value,
            "difference": value - first_model.metrics[name],
            "direction": get_direction(name, own),
            "first_interval": first_model.intervals.get(name),
            "second_interval": second_model.intervals.get(name),
        }
        for name, value in second_model.metrics.items()
        if name in first_model.metrics and name not in incomparable
    ]


def build_fact_rows(first: ComparedRun, second: ComparedRun) -> list[tuple[str, str, str]]:
    """Returns facts about the runs: a name, and the value for the first and the second run."""

    def collect_facts(run: ComparedRun) -> dict[str, str]:
        training, version = run.training, run.evaluation.champion_version
        num_bytes = run.evaluation.challenger.measures.get("model_bytes", 0)
        return {
            "Gate": run.verdict,
            "Champion": f"version {version}" if version is not None else "none",
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
            "Size of the model": f"{num_bytes:,.0f} bytes",
        }

    second_facts, first_facts = collect_facts(second), collect_facts(first)
    return [(name, first_facts[name], second_facts[name]) for name in second_facts]


def find_changes(first: ComparedRun, second: ComparedRun) -> dict[str, list[str]]:
    """Returns the changes in the second run, in lines for each job."""
    return {
        job: describe_data_changes(second.manifests[job], first.manifests[job])
        if job == "preprocess"
        else describe_changes(second.manifests[job].fingerprint, first.manifests[job].fingerprint)
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
        has_same_test_split=have_same_test_split(first, second),
        metrics=build_metric_rows(first, second),
        facts=build_fact_rows(first, second),
        changes=find_changes(first, second),
        charts=_draw_charts(first, second),
        classes=_pair_classes(first, second),
    )


def _draw_charts(first: ComparedRun, second: ComparedRun) -> list[tuple[str, Markup]]:
    runs = list(zip((first, second), _STYLES, strict=True))
    known, names = (
        run.training.history[0].metrics if run.training.history else {} for run, _ in runs
    )
    drawn = []
    for name in (name for name in names if name.startswith("validation_") and name in known):
        lines = [
            Line(
                run.name,
                style,
                [(epoch.epoch + 1, epoch.metrics[name]) for epoch in run.training.history],
            )
            for run, style in runs
        ]
        title = name.replace("_", " ").capitalize()
        y_min = 0.0 if name == "validation_loss" else math.inf
        drawn.append((title, draw_line_chart(f"{title} by epoch", lines, y_min=y_min)))
    curves = [
        Line(run.name, style, to_recall_points(run.curves)) for run, style in runs if run.curves
    ]
    text = "Precision against recall as the mean of all classes"
    chart = draw_share_chart(text, "recall", curves)
    return [*drawn, ("Precision and recall", chart)]


def _pair_classes(
    first: ComparedRun, second: ComparedRun
) -> list[tuple[ClassFigures, ClassFigures]]:
    """Returns the classes of both runs. Of very many, those whose recall differs most."""
    known = {figures.name: figures for figures in first.evaluation.challenger.classes}
    pairs = [
        (known[figures.name], figures)
        for figures in second.evaluation.challenger.classes
        if figures.name in known
    ]
    if len(pairs) > _MAX_CLASS_ROWS:
        pairs.sort(key=lambda pair: -abs(pair[1].recall - pair[0].recall))
    return pairs[:_MAX_CLASS_ROWS]
