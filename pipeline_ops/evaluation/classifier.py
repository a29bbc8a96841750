"""Evaluation of a classifier: its metrics with intervals, slices, and examples to show.

Champion and challenger answer for the same examples, as they are served.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from pipeline_ops.config.evaluate import Evaluate
from pipeline_ops.evaluation.groups import (
    Group,
    build_group,
    build_slice_groups,
    list_required_features,
)
from pipeline_ops.evaluation.inputs import Inputs
from pipeline_ops.evaluation.metrics import Curves, ModelPredictions, compare, evaluate_model
from pipeline_ops.evaluation.predictions import ShownExample, measure_models, predict_all
from pipeline_ops.input.saved_model_client import SavedModelClient, read_encoded_batches
from pipeline_ops.jobs.runner import Job


@dataclasses.dataclass(frozen=True)
class ClassifierFindings:
    """The findings from the answers, before the verdict.

    `curves` are those of the challenger and, if there is one, of the champion.
    """

    whole: Group
    slices: list[Group]
    curves: list[Curves]
    comparison: dict[str, int | float] | None
    mistakes: list[ShownExample]
    surprises: list[ShownExample]
    samples: list[ShownExample]
    top_k: int


def evaluate_classifier(job: Job, config: Evaluate, inputs: Inputs) -> ClassifierFindings:
    names, total = inputs.class_names, inputs.num_test_examples
    clients = [
        SavedModelClient(model.saved_model, model.name, len(names)) for model in inputs.models
    ]

    def report(done: int) -> None:
        job.progress.report("evaluate", done, total, "images")

    report(0)
    job.attempt.folder.mkdir(parents=True, exist_ok=True)
    batches = read_encoded_batches(
        inputs.test_shards,
        config.batch_size,
        inputs.removed_test_positions,
        list_required_features(config.slices),
    )
    found = predict_all(
        clients,
        batches,
        total,
        len(names),
        config.top_k,
        config.slices,
        job.attempt.folder,
        report,
    )
    labels, models = found.labels, found.models
    evaluations, curves = [], []
    for model, measures in zip(models, measure_models(config, inputs, clients), strict=True):
        evaluation, model_curves = evaluate_model(labels, model, names)
        evaluations.append(evaluation.model_copy(update={"measures": measures}))
        curves.append(model_curves)
    shares = answer_class_shares(labels, len(names), config.top_k)
    baseline = evaluate_model(labels, shares, names)[0].metrics
    return ClassifierFindings(
        whole=build_group(labels, models, evaluations, baseline=baseline),
        slices=build_slice_groups(labels, models, found.slices, names),
        curves=curves,
        comparison=compare(labels, *(each.classes for each in models)) if models[1:] else None,
        mistakes=found.worst_mistakes,
        surprises=found.surprises,
        samples=found.samples,
        top_k=config.top_k,
    )


def answer_class_shares(labels: np.ndarray, num_classes: int, top_k: int) -> ModelPredictions:
    """Answers the baseline: for every image, the shares of the classes as probabilities.

    So the answer is the most frequent class. A model that is no better has learned nothing from the
    images. `labels` is int64 [N].
    """
    counts = np.bincount(labels, minlength=num_classes)
    answer, shares = int(counts.argmax()), counts / len(labels)
    # Among equal shares, the class with the higher index comes first.
    best = np.lexsort((np.arange(num_classes), counts))[::-1][:top_k]
    return ModelPredictions(
        classes=np.full(len(labels), answer),
        is_in_top_k=np.isin(labels, best),
        confidences=np.full(len(labels), shares[answer]),
        scores=np.broadcast_to(shares[:, None], (num_classes, len(labels))),
    )


def build_classifier_metrics(found: ClassifierFindings, names: list[str]) -> dict[str, Any]:
    """Returns the part of `metrics.json` that only a classifier has."""
    return {
        "comparison": found.comparison,
        "worst_mistakes": [_to_json_example(shown, names) for shown in found.mistakes],
        "surprises": [_to_json_example(shown, names) for shown in found.surprises],
    }


def _to_json_example(shown: ShownExample, names: list[str]) -> dict[str, Any]:
    example = {
        "key": shown.key,
        "label": names[shown.label],
        "prediction": names[shown.prediction],
        "confidence": shown.confidence,
        "label_probability": shown.label_probability,
    }
    if shown.champion_prediction is not None:
        example["champion_prediction"] = names[shown.champion_prediction]
        example["champion_label_probability"] = shown.champion_label_probability
    return example
