"""A finished run as one JSON object, from the manifests that its tasks left.

Scripts rely on the names. All of them are always there: the values that a run did not reach are
null, or empty.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pipeline_ops.cli.run_view import RunStatus, TaskStatus
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.contract.dataset import DATA_PAGE, SPLITS, DatasetFigures, list_shards
from pipeline_ops.contract.layout import TRIAL, Layout
from pipeline_ops.contract.manifest import WARM_START, Manifest, find_file, read_manifest
from pipeline_ops.contract.outcome import RunOutcome, find_failed
from pipeline_ops.contract.results import (
    PREDICTIONS,
    EvaluationFigures,
    ModelFigures,
    TrainingFigures,
)
from pipeline_ops.contract.run_summary import find_outcome
from pipeline_ops.contract.task_record import find_report
from pipeline_ops.planning.job_kinds import JOBS
from pipeline_ops.planning.trials import read_search
from pipeline_ops.storage.open_store import open_near
from pipeline_ops.storage.store_path import StorePath, StoreUsage


def summarize_run(config: PipelineConfig, run: RunStatus, ended_by: str = "") -> dict[str, Any]:
    """Summarizes a run, which a user may have ended. Raises DataError if a manifest is gone."""
    paths = {
        task.name: open_near(config.root, uri) if (uri := _get_manifest_uri(task)) else None
        for task in run.tasks
    }
    manifests = {job: read_manifest(path) for job in JOBS if (path := paths[job])}
    report = find_report(paths["evaluate"], paths["export"])
    predictions = find_file(evaluate, PREDICTIONS) if (evaluate := paths["evaluate"]) else None
    usages = (task.record.store for task in run.tasks if task.record)
    figures = (export := manifests.get("export")) and ModelFigures.model_validate(export.figures)
    return {
        "pipeline": config.pipeline,
        "run_id": run.run_id,
        "state": run.state,
        "seconds": round(run.seconds, 3),
        "outcome": _find_outcome(config, run, ended_by).model_dump(mode="json"),
        "tasks": {
            task.name: {
                "state": task.state or None,
                "seconds": None if task.seconds is None else round(task.seconds, 3),
                "cached": task.is_cached,
                "manifest": _get_manifest_uri(task),
            }
            for task in run.tasks
        },
        "dataset": _summarize_dataset(paths["preprocess"], manifests.get("preprocess")),
        "training": _summarize_training(manifests.get("train")),
        "search": _summarize_search(config, run.run_id),
        **_summarize_evaluation(manifests.get("evaluate")),
        "model": {
            "name": figures.name if figures else config.export.model,
            "version": figures and figures.version,
            # The folder for TensorFlow Serving or `tf.saved_model.load`.
            "uri": figures and str(config.registry / str(figures.version)),
        },
        "report": report and str(report),
        "predictions": predictions and str(predictions),
        "store": dataclasses.asdict(sum(usages, StoreUsage())),
    }


def _find_outcome(config: PipelineConfig, run: RunStatus, ended_by: str) -> RunOutcome:
    own = [task for task in run.tasks if not task.name.startswith(TRIAL)]
    return find_outcome(
        Layout(config.root, config.pipeline),
        run.run_id,
        run.started,
        {task.name: task.tries for task in own},
        is_finished=run.is_finished,
        failed=find_failed({task.name: task.state for task in own}, run.state),
        ended_by=ended_by,
    )


def _get_manifest_uri(task: TaskStatus) -> str | None:
    return task.record.manifest if task.record and task.state == "success" else None


def _summarize_dataset(path: StorePath | None, manifest: Manifest | None) -> dict[str, Any]:
    page = find_file(path, DATA_PAGE) if path else None
    figures = manifest and DatasetFigures.model_validate(manifest.figures)
    return {
        "examples": {split: figures and figures.num_examples[split] for split in SPLITS},
        "shards": {split: manifest and len(list_shards(manifest, split)) for split in SPLITS},
        "digest": manifest and manifest.digest,
        "rejected": figures and figures.num_rejected,
        "page": page and str(page),
    }


def _summarize_training(manifest: Manifest | None) -> dict[str, Any]:
    names = ("strategy", "workers", "steps", "restarts", "weights_digest")
    figures = manifest and TrainingFigures.model_validate(manifest.figures)
    weights = manifest and manifest.inputs.get(WARM_START)
    values = {name: figures and getattr(figures, name) for name in names}
    early_stop = (figures and figures.early_stop) or None
    return values | {"warm_start": weights and weights.uri, "early_stop": early_stop}


def _summarize_search(config: PipelineConfig, run_id: str) -> dict[str, Any] | None:
    layout = Layout(config.root, config.pipeline)
    result = read_search(layout, run_id) if config.search else None
    if result is None:
        return None
    return {
        "monitor": result.monitor,
        "best": result.winner.trial.name,
        "trials": [
            {
                "trial": r.trial.name,
                "parameters": r.trial.parameters,
                "figure": r.figure,
                "manifest": r.manifest,
                "message": r.message,
                "pruned": r.is_pruned,
            }
            for r in result.results
        ],
        "table": result.format_table(),
    }


def _summarize_evaluation(manifest: Manifest | None) -> dict[str, Any]:
    figures = manifest and EvaluationFigures.model_validate(manifest.figures)
    reasons = [rule.text for rule in figures.rules] if figures else []
    if figures and figures.as_served.reason:
        reasons.append(figures.as_served.text)
    reasons += figures.warnings if figures else []
    return {
        "metrics": figures.challenger.metrics if figures else {},
        "baseline": figures.baseline if figures else {},
        "overfitting": figures and (figures.overfitting or None),
        "gate": {
            "passed": figures and figures.gate_passed,
            "champion_version": figures and figures.champion_version,
            "reasons": reasons,
        },
    }
