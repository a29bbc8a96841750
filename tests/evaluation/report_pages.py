"""Report pages of classifiers, from random answers."""

from __future__ import annotations

import dataclasses

import numpy as np
from linear_models import training_figures
from manifests import make_manifest

from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.contract.results import EvaluationFigures, RuleVerdict
from pipeline_ops.evaluation.answers import count_by_threshold
from pipeline_ops.evaluation.classifier import (
    ClassifierFindings,
    Predictions,
    ShownExample,
    compute_findings,
)
from pipeline_ops.evaluation.inputs import Leaks, Lineage
from pipeline_ops.evaluation.metrics import ModelPredictions
from pipeline_ops.evaluation.report import ReportData, render_report


def make_predictions(
    labels: np.ndarray, classes: np.ndarray, num_classes: int, generator: np.random.Generator
) -> ModelPredictions:
    """A model that gives its answer the largest probability."""
    scores = generator.dirichlet(np.ones(num_classes), len(classes))
    scores[np.arange(len(classes)), classes] += 1.0
    scores /= scores.sum(axis=1, keepdims=True)
    return ModelPredictions(classes, classes == labels, scores.max(axis=1), scores.T)


def make_findings(
    num_classes: int, num_examples: int, noise: float, champion: bool
) -> ClassifierFindings:
    names, generator = [f"class {i}" for i in range(num_classes)], np.random.default_rng(3)
    labels = np.arange(num_examples) % num_classes
    wrong = generator.random((2, num_examples)) < noise
    classes = [(labels + w) % num_classes for w in wrong.astype(int)]
    answers = [make_predictions(labels, c, num_classes, generator) for c in classes[: 1 + champion]]
    mistakes = [
        ShownExample(
            b"none",
            {
                "key": f"{i}.png",
                "label": names[labels[i]],
                "prediction": names[classes[0][i]],
                "confidence": 0.9,
                "label_probability": 0.1,
            },
        )
        for i in np.flatnonzero(wrong[0])[:4]
    ]
    cameras = {"camera": np.where(labels % 2, "front", "back")}
    predictions = Predictions(labels, answers, cameras, mistakes, mistakes, mistakes[:3])
    return compute_findings(predictions, names, 2, [{} for _ in answers])


def render(
    num_classes: int = 3,
    num_examples: int = 60,
    noise: float = 0.3,
    champion: bool = True,
    figures: dict | None = None,
    training: dict | None = None,
    dataset: dict | None = None,
    **changes,
) -> str:
    """Renders a page, with changes of the figures and of other report data."""
    found = make_findings(num_classes, num_examples, noise, champion)
    whole = found.whole
    made = DatasetFigures(
        class_names=[figures.name for figures in whole.challenger.classes],
        image_shape=(28, 28, 1),
        num_examples={"train": 9, "validation": 5, "test": num_examples},
        labels={},
        num_rejected=0,
        rejected_by_reason={},
    )
    evaluation = EvaluationFigures(
        num_examples=num_examples,
        challenger=whole.challenger,
        champion=whole.champion,
        champion_version=4 if champion else None,
        differences=whole.compute_difference_intervals(),
        slices=[group.to_slice_figures() for group in found.slices],
        baseline=dict(whole.baseline),
        gate_passed=True,
        rules=[
            RuleVerdict(metric="accuracy", passed=True, text="accuracy 0.9000 is at least 0.5000")
        ],
    )
    data = ReportData(
        pipeline="digits",
        figures=evaluation.model_copy(update=figures or {}),
        no_champion_reason="" if champion else "there is no champion to compare it with",
        rejected=[],
        training=make_training_figures(made).model_copy(update=training or {}),
        dataset=made.model_copy(update=dataset or {}),
        drift=None,
        leaks=Leaks(0, None),
        counts=count_by_threshold(found, made.class_names, evaluation.champion_version),
        lineage=Lineage([], "f" * 32, {"preprocess": [], "train": []} if champion else None),
    )
    return render_report(found, dataclasses.replace(data, **changes))


def make_training_figures(dataset: DatasetFigures):
    return training_figures(make_manifest(figures=dataset))
