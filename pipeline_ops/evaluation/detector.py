"""Evaluation of a detector: COCO's figures, and counts of the mistakes that a person would see.

It is the counterpart of `classifier.py`. Both models run as they are served. Boxes are compared in
pixels of the images as the data set has them. COCO's figures (`coco.py`) cover all thresholds and
treat each class by itself. Mistakes are counted at one score threshold, the one with the largest
F1: found, confused, missed, false alarm.

Legend: C classes; T true boxes and D detections of one image. Boxes [., 4] are ymin xmin ymax xmax.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline_ops.artifacts.results import ModelEvaluation
from pipeline_ops.config.evaluate import Evaluate
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.coco import (
    DetectionClassMetrics,
    DetectionEvaluation,
    ImageDetections,
    evaluate_boxes,
)
from pipeline_ops.evaluation.groups import Group
from pipeline_ops.evaluation.inputs import Inputs
from pipeline_ops.evaluation.metrics import Curves, compute_class_figures
from pipeline_ops.evaluation.predictions import measure_models
from pipeline_ops.input.saved_model_client import (
    DETECTOR_OUTPUTS,
    EncodedBatch,
    SavedModelClient,
    TrueBoxes,
    read_true_boxes,
)
from pipeline_ops.jobs.runner import Job

_MAX_BATCH_IMAGES = 32
_MIN_IOU = 0.5
_LOWEST_SCORE, _HIGHEST_SCORE = 0.05, 0.95
_DEFAULT_SCORE = 0.5
"""The threshold where no detection is right."""
_SIZES = {"small": 32.0**2, "medium": 96.0**2, "large": float("inf")}
"""COCO's sizes: the area in pixels, each below its limit."""


@dataclasses.dataclass(frozen=True)
class DetectorFindings:
    """The findings from the answers, before the verdict.

    `evaluations` are those of the challenger and, if it was evaluated, of the champion. All other
    fields are about the challenger.
    """

    whole: Group
    evaluations: list[DetectionEvaluation]
    by_size: dict[str, list[int]]
    """Two counts for each size: boxes, and boxes that were found with the right class."""
    scenes: list[TrueBoxes]
    detections: list[ImageDetections]
    min_score: float
    """The recommended score threshold, which pictures and counts have."""

    @property
    def classes(self) -> list[DetectionClassMetrics]:
        return self.evaluations[0].classes

    @property
    def curves(self) -> list[Curves]:
        """Precision-recall curves at an overlap of 0.5, for each model."""
        return [
            {each.name: each.precisions for each in model.classes if each.precisions is not None}
            for model in self.evaluations
        ]


def evaluate_detector(job: Job, config: Evaluate, inputs: Inputs) -> DetectorFindings:
    names, size = inputs.class_names, inputs.dataset.figures.image_shape[:2]
    clients = [
        SavedModelClient(model.saved_model, model.name, len(names), DETECTOR_OUTPUTS)
        for model in inputs.models
    ]
    scenes = list(read_true_boxes(inputs.test_shards, inputs.removed_test_positions))
    if len(scenes) != inputs.num_test_examples:
        raise DataError(
            f"{inputs.dataset.uri}: the test shards hold {len(scenes)} examples, "
            f"the manifest lists {inputs.num_test_examples}. Run preprocess again."
        )
    detections = _detect_all(job, config, clients, scenes)
    evaluations = [evaluate_boxes(scenes, found, size, names) for found in detections]
    thresholds = [recommend_min_score(scenes, found) for found in detections]
    mistakes = [
        count_mistakes(scenes, found, size, len(names), threshold)
        for found, threshold in zip(detections, thresholds, strict=True)
    ]
    measures = measure_models(config, inputs, clients)
    models = [
        ModelEvaluation(
            metrics=evaluation.metrics,
            classes=[
                figures.model_copy(update={"average_precision": coco.average_precision})
                for figures, coco in zip(
                    compute_class_figures(confusion, names), evaluation.classes, strict=True
                )
            ],
            confusion=confusion.tolist(),
            measures=measured,
        )
        for evaluation, (confusion, _), measured in zip(
            evaluations, mistakes, measures, strict=True
        )
    ]
    baseline = evaluate_boxes(scenes, answer_mean_boxes(scenes), size, names)
    return DetectorFindings(
        Group(
            len(scenes),
            models[0],
            models[1] if models[1:] else None,
            baseline=baseline.metrics,
        ),
        evaluations,
        mistakes[0][1],
        scenes,
        detections[0],
        thresholds[0],
    )


def build_detector_metrics(found: DetectorFindings) -> dict[str, Any]:
    """Returns the part of `metrics.json` that only a detector has."""
    return {"by_size": found.by_size, "recommended_min_score": found.min_score}


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


def answer_mean_boxes(scenes: Sequence[TrueBoxes]) -> list[ImageDetections]:
    """Answers the baseline: for every image, a box for each class in the centre.

    It has the mean height and width of the class's boxes. Its score is the share of the images that
    hold the class. The best score comes first.
    """
    classes = [each.classes[~each.is_crowd] for each in scenes]
    boxes = np.concatenate([each.boxes[~each.is_crowd] for each in scenes])
    counts = np.bincount(np.concatenate([np.unique(each) for each in classes]))
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    sizes, box_classes = boxes[:, 2:] - boxes[:, :2], np.concatenate(classes)
    halves = np.array([sizes[box_classes == index].mean(axis=0) / 2 for index in order])
    halves = halves.reshape(-1, 2)
    answer = ImageDetections(
        np.concatenate([0.5 - halves, 0.5 + halves], axis=1), order, counts[order] / len(scenes)
    )
    return [answer] * len(scenes)


def match(truth: TrueBoxes, detected: ImageDetections) -> tuple[np.ndarray, np.ndarray]:
    """Matches the detections of one image with its true boxes.

    Detections with the best scores choose first. They choose among the true boxes that are still
    free: a box of the same class before any other, then the one with the largest overlap.

    Returns:
      int [D], the true box that a detection found, -1 for none; and bool [D], true for a detection
      in a crowd, which is neither right nor wrong.
    """
    ious = _compute_overlaps(detected.boxes, truth)
    truth_indexes = np.full(len(detected.boxes), -1)
    is_ignored = np.zeros(len(detected.boxes), bool)
    free = ~truth.is_crowd
    for i in np.argsort(-detected.scores, kind="stable"):
        candidates = np.flatnonzero(free & (ious[i] >= _MIN_IOU))
        if len(candidates):
            is_other_class = truth.classes[candidates] != detected.classes[i]
            order = np.lexsort((-ious[i, candidates], is_other_class))
            truth_indexes[i] = candidates[order[0]]
            free[truth_indexes[i]] = False
        else:
            is_ignored[i] = (ious[i, truth.is_crowd] >= _MIN_IOU).any()
    return truth_indexes, is_ignored


def _compute_overlaps(boxes: np.ndarray, truth: TrueBoxes) -> np.ndarray:
    """Returns float [D, T]: intersection over union, and over the detection's area for a crowd."""
    low = np.maximum(boxes[:, None, :2], truth.boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], truth.boxes[None, :, 2:])
    inter = np.prod(np.clip(high - low, 0, None), axis=-1)
    areas, true_areas = _compute_areas(boxes)[:, None], _compute_areas(truth.boxes)[None]
    whole = np.where(truth.is_crowd[None], areas, areas + true_areas - inter)
    overlaps: np.ndarray = np.divide(inter, whole, out=np.zeros(inter.shape), where=whole > 0)
    return overlaps


def _compute_areas(boxes: np.ndarray) -> np.ndarray:
    areas: np.ndarray = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    return areas


def recommend_min_score(
    scenes: Sequence[TrueBoxes], detections: Sequence[ImageDetections]
) -> float:
    """Returns the score threshold with the largest F1, in hundredths.

    Detections choose true boxes by descending score, so the matches above a threshold are the same
    with and without the detections below it. `detections` are the answers of one model.
    """
    scores, hits, num_true = [np.empty(0)], [np.empty(0, bool)], 0
    for scene, answer in zip(scenes, detections, strict=True):
        detected = answer.filter_by_score(_LOWEST_SCORE)
        truth_indexes, is_ignored = match(scene, detected)
        is_hit = truth_indexes >= 0
        is_hit[is_hit] = scene.classes[truth_indexes[is_hit]] == detected.classes[is_hit]
        scores.append(detected.scores[~is_ignored])
        hits.append(is_hit[~is_ignored])
        num_true += int((~scene.is_crowd).sum())
    hundredths = np.floor(np.concatenate(scores) * 100 + 1e-6)
    all_hits = np.concatenate(hits)
    if not all_hits.any():
        return _DEFAULT_SCORE
    order = np.argsort(-hundredths, kind="stable")
    counts = np.arange(1, len(order) + 1)
    f1 = 2 * np.cumsum(all_hits[order]) / (counts + num_true)
    # Only the last of several detections with the same score is a threshold.
    is_last = np.append(np.diff(hundredths[order]) != 0, True)
    best = np.flatnonzero(is_last)[np.argmax(f1[is_last])]
    return float(np.clip(hundredths[order][best] / 100, _LOWEST_SCORE, _HIGHEST_SCORE))


def count_mistakes(
    scenes: Sequence[TrueBoxes],
    detections: Sequence[ImageDetections],
    size: tuple[int, int],
    num_classes: int,
    min_score: float,
) -> tuple[np.ndarray, dict[str, list[int]]]:
    """Counts the mistakes that a person would see at the score threshold.

    Returns the confusion, int [C + 1, C + 1], and two counts for each size: boxes, and boxes that
    were found with the right class. Row i and column j of the confusion count boxes of class i that
    were taken for class j. The last row counts false alarms, the last column missed boxes.
    """
    confusion = np.zeros((num_classes + 1, num_classes + 1), int)
    by_size = np.zeros((len(_SIZES), 2), int)
    for scene, answer in zip(scenes, detections, strict=True):
        detected = answer.filter_by_score(min_score)
        truth_indexes, is_ignored = match(scene, detected)
        predicted = np.full(len(scene.boxes), num_classes)
        is_matched = truth_indexes >= 0
        predicted[truth_indexes[is_matched]] = detected.classes[is_matched]
        counted = ~scene.is_crowd
        classes, predicted = scene.classes[counted], predicted[counted]
        np.add.at(confusion, (classes, predicted), 1)
        np.add.at(confusion, (num_classes, detected.classes[~is_matched & ~is_ignored]), 1)
        areas = _compute_areas(scene.boxes[counted]) * size[0] * size[1]
        sizes = np.digitize(areas, list(_SIZES.values()))
        np.add.at(by_size, (sizes, 0), 1)
        np.add.at(by_size, (sizes, 1), classes == predicted)
    return confusion, dict(zip(_SIZES, by_size.tolist(), strict=True))
