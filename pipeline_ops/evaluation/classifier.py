"""Evaluation of a classifier: its metrics with intervals, slices, and examples to show.

Champion and challenger answer for the same examples, as they are served.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pipeline_ops.config.evaluate import Evaluate
from pipeline_ops.evaluation.baseline import answer_class_shares
from pipeline_ops.evaluation.groups import Group, build_slice_groups, build_whole_group
from pipeline_ops.evaluation.inputs import Inputs
from pipeline_ops.evaluation.measures import measure_models
from pipeline_ops.evaluation.metrics import (
    Comparison,
    PrecisionRecallCurves,
    compare,
    evaluate_model,
)
from pipeline_ops.evaluation.predictions import Predictions, ShownExample, predict_all
from pipeline_ops.evaluation.slices import list_required_features
from pipeline_ops.input.saved_model_client import SavedModelClient, read_encoded_batches
from pipeline_ops.jobs.runner import Job


@dataclasses.dataclass(frozen=True)
class ClassifierFindings:
    """The findings from the answers, before the verdict.

    `curves` are those of the challenger and, if there is one, of the champion.
    """

    whole: Group
    slices: list[Group]
    curves: list[PrecisionRecallCurves]
    comparison: Comparison | None
    mistakes: list[ShownExample]
    surprises: list[ShownExample]
    samples: list[ShownExample]
    top_k: int


def evaluate_classifier(job: Job, config: Evaluate, inputs: Inputs) -> ClassifierFindings:
    names = inputs.dataset.figures.class_names
    clients = [
        SavedModelClient(model.saved_model, model.name, len(names)) for model in inputs.models
    ]
    predictions = _predict_all(job, config, inputs, clients)
    labels, models = predictions.labels, predictions.models
    *evaluated, (baseline, _) = (
        evaluate_model(labels, model, names, config.top_k)
        for model in (*models, answer_class_shares(labels, len(names)))
    )
    evaluations = [
        evaluation.model_copy(update={"measures": measures})
        for (evaluation, _), measures in zip(
            evaluated, measure_models(config, inputs, clients), strict=True
        )
    ]
    return ClassifierFindings(
        whole=build_whole_group(labels, models, evaluations, baseline.metrics, config.top_k),
        slices=build_slice_groups(labels, models, predictions.slices, names, config.top_k),
        curves=[curves for _, curves in evaluated],
        comparison=compare(labels, models[0].classes, models[1].classes)
        if len(models) > 1
        else None,
        mistakes=predictions.worst_mistakes,
        surprises=predictions.surprises,
        samples=predictions.samples,
        top_k=config.top_k,
    )


def _predict_all(
    job: Job, config: Evaluate, inputs: Inputs, clients: list[SavedModelClient]
) -> Predictions:
    dataset, total = inputs.dataset, inputs.dataset.num_test_examples

    def report(done: int) -> None:
        job.progress.report("evaluate", done, total, "images")

    report(0)
    job.attempt.folder.mkdir(parents=True, exist_ok=True)
    return predict_all(
        clients,
        read_encoded_batches(
            dataset.test_shards,
            config.batch_size,
            dataset.removed_test_positions,
            list_required_features(config.slices),
        ),
        total,
        len(dataset.figures.class_names),
        config.slices,
        job.attempt.folder,
        report,
    )


def build_classifier_metrics(found: ClassifierFindings, names: list[str]) -> dict[str, Any]:
    """Returns the part of `metrics.json` that only a classifier has."""
    return {
        "comparison": found.comparison and dataclasses.asdict(found.comparison),
        "precision_at_recall": [curves.to_json(names) for curves in found.curves],
        "worst_mistakes": [_to_json_example(shown, names) for shown in found.mistakes],
        "surprises": [_to_json_example(shown, names) for shown in found.surprises],
    }


def _to_json_example(shown: ShownExample, names: list[str]) -> dict[str, Any]:
    champion = (
        {}
        if shown.champion_prediction is None
        else {
            "champion_prediction": names[shown.champion_prediction],
            "champion_label_probability": shown.champion_label_probability,
        }
    )
    return {
        "key": shown.key,
        "label": names[shown.label],
        "prediction": names[shown.prediction],
        "confidence": shown.confidence,
        "label_probability": shown.label_probability,
        **champion,
    }
