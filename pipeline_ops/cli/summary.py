"""A finished run as one JSON object, from the manifests that its tasks left.

Scripts rely on the names. All of them are always there: the values that a run did not reach are
null, or empty.
"""

from __future__ import annotations

from typing import Any

from pipeline_ops.artifacts.dataset import SPLITS, DatasetFigures, shards_of
from pipeline_ops.artifacts.input_names import WARM_START
from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.artifacts.manifest import Manifest, read_manifest
from pipeline_ops.artifacts.results import EvaluationFigures, ModelFigures, TrainingFigures
from pipeline_ops.cli.watch import RunView, TaskStatus
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.jobs.task_record import find_report
from pipeline_ops.planning.trials import read_search
from pipeline_ops.registry.registry import Registry


def summarise(config: PipelineConfig, run: RunView) -> dict[str, Any]:
    """Summarizes a run. Raises DataError if a manifest that a task left is gone."""
    return {
        "pipeline": config.pipeline,
        "run_id": run.run_id,
        "state": run.state,
        "seconds": round(run.seconds, 3),
        "tasks": {task.name: _task(task) for task in run.tasks},
        "dataset": _dataset(_manifest(run, "preprocess")),
        "training": _training(_manifest(run, "train")),
        "search": _search(config, run),
        **_evaluation(_manifest(run, "evaluate")),
        "model": _model(config, _manifest(run, "export")),
        "report": _report(run),
    }


def _manifest(run: RunView, task: str) -> Manifest | None:
    uri = _uri(run.task(task))
    return read_manifest(uri) if uri else None


def _uri(task: TaskStatus) -> str | None:
    return task.record.manifest if task.record and task.state == "success" else None


def _task(task: TaskStatus) -> dict[str, Any]:
    seconds = None if task.seconds is None else round(task.seconds, 3)
    return {
        "state": task.state or None,
        "seconds": seconds,
        "cached": task.is_cached,
        "manifest": _uri(task),
    }


def _dataset(manifest: Manifest | None) -> dict[str, Any]:
    if manifest is None:
        return {"examples": dict.fromkeys(SPLITS), "shards": dict.fromkeys(SPLITS), "digest": None}
    figures = DatasetFigures.model_validate(manifest.figures)
    shards = {split: len(shards_of(manifest, split)) for split in SPLITS}
    return {
        "examples": {split: figures.num_examples[split] for split in SPLITS},
        "shards": shards,
        "digest": manifest.digest,
    }


def _training(manifest: Manifest | None) -> dict[str, Any]:
    """Summarizes the training. `warm_start` is the place of its initial weights."""
    names = ("strategy", "workers", "steps", "restarts", "weights_digest")
    if manifest is None:
        return dict.fromkeys((*names, "warm_start"))
    figures, began_with = (
        TrainingFigures.model_validate(manifest.figures),
        manifest.inputs.get(WARM_START),
    )
    return {name: getattr(figures, name) for name in names} | {
        "warm_start": began_with and began_with.uri
    }


def _search(config: PipelineConfig, run: RunView) -> dict[str, Any] | None:
    """All trials, and the number of the best one; None without a search, or without a result."""
    result = (
        read_search(Layout(config.root, config.pipeline), run.run_id) if config.search else None
    )
    if result is None:
        return None
    trials = [
        {
            "trial": r.trial.name,
            "parameters": r.trial.parameters,
            "figure": r.figure,
            "manifest": r.manifest,
            "message": r.message,
        }
        for r in result.results
    ]
    return {
        "monitor": result.monitor,
        "best": result.winner.trial.name,
        "trials": trials,
        "table": result.table(),
    }


def _evaluation(manifest: Manifest | None) -> dict[str, Any]:
    if manifest is None:
        return {"metrics": {}, "gate": {"passed": None, "champion_version": None, "reasons": []}}
    figures = EvaluationFigures.model_validate(manifest.figures)
    reasons = [rule.text for rule in figures.rules]
    return {
        "metrics": figures.challenger.metrics,
        "gate": {
            "passed": figures.gate_passed,
            "champion_version": figures.champion_version,
            "reasons": reasons,
        },
    }


def _model(config: PipelineConfig, manifest: Manifest | None) -> dict[str, Any]:
    """Describes the model. `uri` is the folder for TensorFlow Serving or `tf.saved_model.load`."""
    if manifest is None:
        return {"name": config.export.model, "version": None, "uri": None}
    figures = ModelFigures.model_validate(manifest.figures)
    return {
        "name": figures.name,
        "version": figures.version,
        "uri": Registry(config.registry).store.uri(figures.version),
    }


def _report(run: RunView) -> str | None:
    file = find_report(_uri(run.task("evaluate")), _uri(run.task("export")))
    return str(file) if file else None
