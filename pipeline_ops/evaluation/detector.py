"""Evaluation of a detector: COCO's figures, the gate, and a page with pictures.

It is the counterpart of `evaluate.py`, which evaluates classifiers. Both models run as they are
served. Boxes are compared in pixels of the images as the data set has them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from pipeline_ops.artifacts.results import (
    METRICS,
    REPORT,
    ClassFigures,
    EvaluationFigures,
    ModelEvaluation,
)
from pipeline_ops.config.evaluate import Evaluate
from pipeline_ops.errors import DataError, ExitCode
from pipeline_ops.evaluation.coco import (
    DetectionEvaluation,
    DetectionTable,
    Truths,
    evaluate_detections,
)
from pipeline_ops.evaluation.detector_page import DetectorData, pictures, render_detector
from pipeline_ops.evaluation.gate import NO_CHAMPION, Evidence, judge
from pipeline_ops.evaluation.groups import Group
from pipeline_ops.evaluation.inputs import Inputs
from pipeline_ops.evaluation.leaks import find_leaks
from pipeline_ops.evaluation.lineage import trace
from pipeline_ops.evaluation.matching import ImageDetections, areas, match, size_of
from pipeline_ops.evaluation.measures import largest_drift, latencies_milliseconds, read_drift
from pipeline_ops.evaluation.report import read_rejected
from pipeline_ops.input.detections import OUTPUTS, TrueBoxes, read_true_boxes
from pipeline_ops.input.saved_model_client import EncodedBatch, ServedModel
from pipeline_ops.jobs.runner import Job
from pipeline_ops.storage.atomic import write_json, write_whole

_NAMES = {
    "map": "ap",
    "map_50": "ap_50",
    "map_75": "ap_75",
    "map_small": "ap_small",
    "map_medium": "ap_medium",
    "map_large": "ap_large",
    "mar_1": "ar_1",
    "mar_10": "ar_10",
    "mar_100": "ar_100",
    "mar_small": "ar_small",
    "mar_medium": "ar_medium",
    "mar_large": "ar_large",
}
"""Our names of the figures, as in most papers, and COCO's names of the same figures."""
_MOST_AT_ONCE = 32


@dataclasses.dataclass
class Mistakes:
    """Counts at one threshold.

    `confusion[i][j]` counts boxes of class i that were taken for class j. The last row counts false
    alarms, the last column missed boxes.
    """

    confusion: np.ndarray
    by_size: dict[str, list[int]]
    """Two counts for each size: boxes, and boxes that were found with the right class."""


def evaluate_detector(
    job: Job, config: Evaluate, inputs: Inputs, why_alone: str | None
) -> ExitCode:
    """Evaluates and writes the artifact, whatever the verdict."""
    leaks = find_leaks(inputs.dataset, inputs.champion, config.allowed_leaks)
    models, scenes = _load(inputs, with_champion=why_alone is None), _read(inputs)
    answers = _ask(job, config, models, scenes)
    size, names = inputs.dataset.figures.image_shape[:2], inputs.dataset.figures.class_names
    evaluations = [_evaluate(scenes, found, size, names) for found in answers]
    mistakes = [count_mistakes(scenes, found, size, len(names)) for found in answers]
    measures = _measure(config, inputs, models, scenes)
    judged = [_as_model(*each, names) for each in zip(evaluations, mistakes, measures, strict=True)]
    figures = _judge(config, inputs, len(scenes), judged, why_alone)
    with job.artifact() as draft:
        write_json(
            draft.folder / METRICS,
            figures.model_dump(mode="json")
            | {
                "class_names": names,
                "by_size": mistakes[0].by_size,
                "leaks": dataclasses.asdict(leaks),
                "precision_at_recall": [_precisions(evaluation) for evaluation in evaluations],
            },
        )
        write_whole(
            draft.folder / REPORT,
            render_detector(
                DetectorData(
                    pipeline=job.request.pipeline,
                    figures=figures,
                    training=inputs.challenger.figures,
                    dataset=inputs.dataset.figures,
                    rejected=read_rejected(inputs.dataset.quarantine),
                    drift=read_drift(inputs.dataset.statistics),
                    leaks=leaks,
                    lineage=trace(job.request, inputs),
                    why_alone=why_alone,
                    evaluations=evaluations,
                    by_size=mistakes[0].by_size,
                    pictures=pictures(scenes, answers[0], names, config.worst_mistakes),
                )
            ).encode(),
        )
        draft.figures = figures.model_dump(mode="json")
    return ExitCode.SUCCESS if figures.gate_passed else ExitCode.GATE_NOT_PASSED


def _load(inputs: Inputs, with_champion: bool) -> list[ServedModel]:
    num_classes = len(inputs.dataset.figures.class_names)
    models = [ServedModel(inputs.challenger.saved_model, "the challenger", num_classes, OUTPUTS)]
    if with_champion:
        models.append(
            ServedModel(
                inputs.champion.saved_model,
                f"the champion (version {inputs.champion.version})",
                num_classes,
                OUTPUTS,
            )
        )
    return models


def _read(inputs: Inputs) -> list[TrueBoxes]:
    """Reads the test images."""
    scenes = list(
        read_true_boxes(inputs.dataset.test_shards, inputs.dataset.removed_from_test_shards)
    )
    if len(scenes) != inputs.dataset.num_test_examples:
        raise DataError(
            f"{inputs.dataset.uri}: the test shards hold {len(scenes)} examples, "
            f"the manifest says {inputs.dataset.num_test_examples}"
        )
    return scenes


def _ask(
    job: Job, config: Evaluate, models: Sequence[ServedModel], scenes: Sequence[TrueBoxes]
) -> list[list[ImageDetections]]:
    """Returns the answers of each model in the order of the images."""
    answers: list[list[ImageDetections]] = [[] for _ in models]
    step = min(config.batch, _MOST_AT_ONCE)
    for start in range(0, len(scenes), step):
        part = scenes[start : start + step]
        batch = EncodedBatch(
            [scene.key for scene in part],
            np.array([scene.image for scene in part], object),
            np.full(len(part), -1),
        )
        for model, found in zip(models, answers, strict=True):
            found += _answers(model.detect(batch))
        job.progress.report("evaluate", start + len(part), len(scenes), "images")
    return answers


def _measure(
    config: Evaluate, inputs: Inputs, models: Sequence[ServedModel], scenes: Sequence[TrueBoxes]
) -> list[dict[str, float]]:
    """Measures each model as it is served."""
    found = [
        {"model_bytes": float(model.model_bytes)}
        for model in (inputs.challenger, inputs.champion)[: len(models)]
    ]
    if config.measures_latency:
        images = np.array([scene.image for scene in scenes[:_MOST_AT_ONCE]], object)
        for measures, latency in zip(found, latencies_milliseconds(models, images), strict=True):
            measures["latency_milliseconds"] = latency
    return found


def _answers(outputs: dict[str, np.ndarray]) -> list[ImageDetections]:
    return [
        ImageDetections(boxes[:count], classes[:count], scores[:count])
        for boxes, classes, scores, count in zip(
            outputs["boxes"],
            outputs["classes"],
            outputs["scores"],
            outputs["num_detections"],
            strict=True,
        )
    ]


def _evaluate(
    scenes: Sequence[TrueBoxes],
    answers: Sequence[ImageDetections],
    size: tuple[int, int],
    names: Sequence[str],
) -> DetectionEvaluation:
    def joined(parts: Sequence[np.ndarray], shape: tuple[int, ...] = (0,)) -> np.ndarray:
        return np.concatenate([np.empty(shape), *parts])

    def images(boxes: Sequence[np.ndarray]) -> np.ndarray:
        return np.repeat(np.arange(len(boxes)), [len(each) for each in boxes])

    scale = np.array([*size, *size], np.float64)
    truths = Truths(
        images([scene.boxes for scene in scenes]),
        joined([scene.boxes for scene in scenes], (0, 4)) * scale,
        joined([scene.classes for scene in scenes]).astype(int),
        joined([scene.is_crowd for scene in scenes]).astype(bool),
    )
    found = DetectionTable(
        images([answer.boxes for answer in answers]),
        joined([answer.boxes for answer in answers], (0, 4)) * scale,
        joined([answer.classes for answer in answers]).astype(int),
        joined([answer.scores for answer in answers]),
    )
    return evaluate_detections(truths, found, len(scenes), names)


def count_mistakes(
    scenes: Sequence[TrueBoxes],
    answers: Sequence[ImageDetections],
    size: tuple[int, int],
    num_classes: int,
) -> Mistakes:
    """Counts the mistakes that a person would see at the score threshold."""
    confusion, by_size = (
        np.zeros((num_classes + 1, num_classes + 1), int),
        {name: [0, 0] for name in ("small", "medium", "large")},
    )
    for scene, answer in zip(scenes, (answer.sure() for answer in answers), strict=True):
        found = match(
            scene.boxes, scene.classes, scene.is_crowd, answer.boxes, answer.classes, answer.scores
        )
        class_of = {
            int(truth): int(answer.classes[i])
            for i, truth in enumerate(found.truth_of)
            if truth >= 0
        }
        for i, area in enumerate(areas(scene.boxes) * size[0] * size[1]):
            if not scene.is_crowd[i]:
                taken_for = class_of.get(i, num_classes)
                confusion[scene.classes[i], taken_for] += 1
                count = by_size[size_of(float(area))]
                count[0], count[1] = count[0] + 1, count[1] + int(taken_for == scene.classes[i])
        for i in np.flatnonzero((found.truth_of < 0) & ~found.is_ignored):
            confusion[num_classes, answer.classes[i]] += 1
    return Mistakes(confusion, by_size)


def _judge(
    config: Evaluate,
    inputs: Inputs,
    num_examples: int,
    models: Sequence[ModelEvaluation],
    why_alone: str | None,
) -> EvaluationFigures:
    challenger, champion = models[0], models[1] if len(models) > 1 else None
    drift = largest_drift(read_drift(inputs.dataset.statistics))
    rules = judge(
        config.gate,
        Evidence(
            Group("", "", num_examples, challenger, champion, None, None),
            (),
            drift,
            why_alone or NO_CHAMPION,
        ),
    )
    return EvaluationFigures(
        num_examples=num_examples,
        challenger=challenger,
        champion=champion,
        champion_version=inputs.champion.version if inputs.champion else None,
        gate_passed=all(rule.passed for rule in rules),
        rules=rules,
        drift=drift,
    )


def _precisions(evaluation: DetectionEvaluation) -> dict[str, list[float]]:
    """Returns precisions by class, at an overlap of 0.5 and the recalls of `scores.RECALLS`."""
    return {
        each.name: [round(float(value), 4) for value in each.precisions]
        for each in evaluation.classes
        if each.precisions is not None
    }


def _as_model(
    evaluation: DetectionEvaluation,
    mistakes: Mistakes,
    measures: dict[str, float],
    names: Sequence[str],
) -> ModelEvaluation:
    """Returns COCO's figures that have a value, and counts at the threshold for each class."""
    metrics = {
        ours: evaluation.metrics[cocos]
        for ours, cocos in _NAMES.items()
        if evaluation.metrics[cocos] is not None
    }
    confusion, classes = mistakes.confusion, []
    for index, name in enumerate(names):
        right, support, answered = (
            int(value)
            for value in (
                confusion[index, index],
                confusion[index].sum(),
                confusion[:, index].sum(),
            )
        )
        precision, recall = (
            right / answered if answered else 0.0,
            right / support if support else 0.0,
        )
        classes.append(
            ClassFigures(
                name=name,
                precision=precision,
                recall=recall,
                support=support,
                f1=2 * precision * recall / (precision + recall) if right else 0.0,
                average_precision=evaluation.classes[index].average_precision,
            )
        )
    return ModelEvaluation(
        metrics=metrics, classes=classes, confusion=confusion.tolist(), measures=measures
    )
