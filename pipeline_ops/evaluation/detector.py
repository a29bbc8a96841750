"""Evaluation of a detector: COCO's figures, and counts of the mistakes that a person would see.

It is the counterpart of `classifier.py`. Both models run as they are served. Boxes are compared in
pixels of the images as the data set has them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline_ops.artifacts.results import ModelEvaluation
from pipeline_ops.config.evaluate import Evaluate
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.baseline import answer_mean_boxes
from pipeline_ops.evaluation.coco import (
    DetectionEvaluation,
    DetectionTable,
    GroundTruths,
    evaluate_detections,
)
from pipeline_ops.evaluation.groups import Group, to_pair
from pipeline_ops.evaluation.inputs import Dataset, Inputs
from pipeline_ops.evaluation.matching import (
    SIZES,
    ImageDetections,
    classify_size,
    compute_areas,
    match,
    recommend_min_score,
)
from pipeline_ops.evaluation.measures import measure_models
from pipeline_ops.evaluation.metrics import compute_class_figures
from pipeline_ops.input.saved_model_client import (
    DETECTOR_OUTPUTS,
    EncodedBatch,
    SavedModelClient,
    TrueBoxes,
    read_true_boxes,
)
from pipeline_ops.jobs.runner import Job

_MAX_BATCH_IMAGES = 32


@dataclasses.dataclass
class MistakeCounts:
    """Counts at one threshold.

    `confusion[i][j]` counts boxes of class i that were taken for class j. The last row counts false
    alarms, the last column missed boxes.
    """

    confusion: np.ndarray
    by_size: dict[str, list[int]]
    """Two counts for each size: boxes, and boxes that were found with the right class."""


@dataclasses.dataclass(frozen=True)
class DetectorFindings:
    """The findings from the answers, before the verdict.

    `evaluations` are those of the challenger and, if it was evaluated, of the champion. All other
    fields are about the challenger.
    """

    whole: Group
    evaluations: list[DetectionEvaluation]
    by_size: dict[str, list[int]]
    scenes: list[TrueBoxes]
    detections: list[ImageDetections]
    min_score: float
    """The recommended score threshold, which pictures and counts have."""


def evaluate_detector(job: Job, config: Evaluate, inputs: Inputs) -> DetectorFindings:
    figures = inputs.dataset.figures
    size, names = figures.image_shape[:2], figures.class_names
    clients = [
        SavedModelClient(model.saved_model, model.name, len(names), DETECTOR_OUTPUTS)
        for model in inputs.models
    ]
    scenes = _read_scenes(inputs.dataset)
    detections = _detect_all(job, config, clients, scenes)
    evaluations = [evaluate_boxes(scenes, found, size, names) for found in detections]
    thresholds = [recommend_min_score(scenes, found) for found in detections]
    mistakes = [
        count_mistakes(scenes, found, size, len(names), threshold)
        for found, threshold in zip(detections, thresholds, strict=True)
    ]
    models = [
        _to_model_evaluation(*each, names)
        for each in zip(evaluations, mistakes, measure_models(config, inputs, clients), strict=True)
    ]
    baseline = evaluate_boxes(scenes, answer_mean_boxes(scenes), size, names)
    return DetectorFindings(
        Group("", "", len(scenes), *to_pair(models), baseline=_list_known_metrics(baseline)),
        evaluations,
        mistakes[0].by_size,
        scenes,
        detections[0],
        thresholds[0],
    )


def build_detector_metrics(found: DetectorFindings) -> dict[str, Any]:
    """Returns the part of `metrics.json` that only a detector has.

    Precisions are by class, at an overlap of 0.5 and at `scores.RECALL_THRESHOLDS`.
    """
    return {
        "by_size": found.by_size,
        "recommended_min_score": found.min_score,
        "precision_at_recall": [
            {
                each.name: each.precisions.round(4).tolist()
                for each in evaluation.classes
                if each.precisions is not None
            }
            for evaluation in found.evaluations
        ],
    }


def _read_scenes(dataset: Dataset) -> list[TrueBoxes]:
    """Reads the test images."""
    scenes = list(read_true_boxes(dataset.test_shards, dataset.removed_test_positions))
    if len(scenes) != dataset.num_test_examples:
        raise DataError(
            f"{dataset.uri}: the test shards hold {len(scenes)} examples, "
            f"the manifest lists {dataset.num_test_examples}. Run preprocess again."
        )
    return scenes


def _detect_all(
    job: Job, config: Evaluate, clients: Sequence[SavedModelClient], scenes: Sequence[TrueBoxes]
) -> list[list[ImageDetections]]:
    """Returns the answers of each model in the order of the images."""
    detections: list[list[ImageDetections]] = [[] for _ in clients]
    step = min(config.batch_size, _MAX_BATCH_IMAGES)
    for start in range(0, len(scenes), step):
        part = scenes[start : start + step]
        batch = EncodedBatch(
            [scene.key for scene in part],
            np.array([scene.image for scene in part], object),
            np.full(len(part), -1),
        )
        for client, found in zip(clients, detections, strict=True):
            found += to_image_detections(client.predict(batch))
        job.progress.report("evaluate", start + len(part), len(scenes), "images")
    return detections


def to_image_detections(outputs: dict[str, np.ndarray]) -> list[ImageDetections]:
    return [
        ImageDetections(boxes[:count], classes[:count], scores[:count])
        for boxes, scores, classes, count in zip(
            *(outputs[name] for name in DETECTOR_OUTPUTS), strict=True
        )
    ]


def evaluate_boxes(
    scenes: Sequence[TrueBoxes],
    detections: Sequence[ImageDetections],
    size: tuple[int, int],
    names: Sequence[str],
) -> DetectionEvaluation:
    """Computes COCO's figures from the answers of one model. `size` is height and width."""

    def join(
        images: Sequence[TrueBoxes] | Sequence[ImageDetections],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        indexes = np.repeat(np.arange(len(images)), [len(each.boxes) for each in images])
        boxes = np.concatenate([np.empty((0, 4)), *(each.boxes for each in images)])
        classes = np.concatenate([np.empty(0, int), *(each.classes for each in images)])
        return indexes, boxes * np.array([*size, *size], np.float64), classes.astype(int)

    is_crowd = np.concatenate([np.empty(0, bool), *(scene.is_crowd for scene in scenes)])
    scores = np.concatenate([np.empty(0), *(found.scores for found in detections)])
    return evaluate_detections(
        GroundTruths(*join(scenes), is_crowd.astype(bool)),
        DetectionTable(*join(detections), scores),
        len(scenes),
        names,
    )


def count_mistakes(
    scenes: Sequence[TrueBoxes],
    detections: Sequence[ImageDetections],
    size: tuple[int, int],
    num_classes: int,
    min_score: float,
) -> MistakeCounts:
    """Counts the mistakes that a person would see at the score threshold."""
    confusion = np.zeros((num_classes + 1, num_classes + 1), int)
    by_size = {name: [0, 0] for name in SIZES}
    for scene, answer in zip(scenes, detections, strict=True):
        detected = answer.filter_by_score(min_score)
        found = match(scene, detected)
        predicted = np.full(len(scene.boxes), num_classes)
        is_matched = found.truth_indexes >= 0
        predicted[found.truth_indexes[is_matched]] = detected.classes[is_matched]
        areas = compute_areas(scene.boxes) * size[0] * size[1]
        for i in np.flatnonzero(~scene.is_crowd):
            confusion[scene.classes[i], predicted[i]] += 1
            count = by_size[classify_size(float(areas[i]))]
            count[0] += 1
            count[1] += int(predicted[i] == scene.classes[i])
        for i in np.flatnonzero(~is_matched & ~found.is_ignored):
            confusion[num_classes, detected.classes[i]] += 1
    return MistakeCounts(confusion, by_size)


def _to_model_evaluation(
    evaluation: DetectionEvaluation,
    mistakes: MistakeCounts,
    measures: dict[str, float],
    names: Sequence[str],
) -> ModelEvaluation:
    """Returns COCO's figures that have a value, and counts at the threshold for each class."""
    return ModelEvaluation(
        metrics=_list_known_metrics(evaluation),
        classes=[
            figures.model_copy(update={"average_precision": coco.average_precision})
            for figures, coco in zip(
                compute_class_figures(mistakes.confusion, names), evaluation.classes, strict=True
            )
        ],
        confusion=mistakes.confusion.tolist(),
        measures=measures,
    )


def _list_known_metrics(evaluation: DetectionEvaluation) -> dict[str, float]:
    return {name: value for name, value in evaluation.metrics.items() if value is not None}
