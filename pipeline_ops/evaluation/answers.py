"""The answers behind an evaluation's figures, as files: by threshold, and example by example.

`thresholds.json` has counts, so that a page can show all rates at any threshold. A classifier also
leaves `predictions.npz` with its answer to each test example. Equal answers give equal bytes.

Legend: N examples, C classes, K kept classes of an example.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from pipeline_ops.contract.results import ANSWERS, ANSWERS_BY_THRESHOLD
from pipeline_ops.contract.thresholds import (
    MAX_MATRIX_CLASSES,
    NUM_THRESHOLDS,
    THRESHOLDS,
    ClassCounts,
    ModelCounts,
    ThresholdCounts,
)
from pipeline_ops.evaluation.classifier import ClassifierFindings, Predictions
from pipeline_ops.evaluation.coco import ClassMatches
from pipeline_ops.evaluation.detector import DetectorFindings
from pipeline_ops.evaluation.metrics import ModelPredictions
from pipeline_ops.storage.local_files import open_new_below, write_atomically

_NUM_KEPT = 5
"""The classes whose probabilities are kept, the most probable ones, if there are many classes."""
_BLOCK_EXAMPLES = 4096


def count_by_threshold(
    found: ClassifierFindings | DetectorFindings, names: Sequence[str], champion_version: int | None
) -> ThresholdCounts:
    """Counts the answers of each model by the highest threshold that they reach."""
    if isinstance(found, ClassifierFindings):
        labels = found.predictions.labels
        models = [_count_answers(labels, each, len(names)) for each in found.predictions.models]
    else:
        models = [
            ModelCounts(classes=[_count_detections(each) for each in model.matches])
            for model in found.evaluations
        ]
    return ThresholdCounts(
        task="classification" if isinstance(found, ClassifierFindings) else "detection",
        class_names=list(names),
        num_examples=found.whole.num_examples,
        start=0 if isinstance(found, ClassifierFindings) else round(100 * found.min_score),
        models=models,
        champion_version=champion_version if models[1:] else None,
    )


def write_answers(
    folder: Path, found: ClassifierFindings | DetectorFindings, counts: ThresholdCounts
) -> None:
    """Writes `thresholds.json` and, of a classifier, `predictions.npz`."""
    text = json.dumps(counts.model_dump(), ensure_ascii=False, separators=(",", ":"))
    write_atomically(folder / ANSWERS_BY_THRESHOLD, text.encode(errors="replace"))
    if isinstance(found, ClassifierFindings):
        with open_new_below(folder, ANSWERS) as file:
            # The members of the archive have NumPy's constant time, and are not compressed.
            np.savez(file, **_make_arrays(found.predictions))  # type: ignore[arg-type]


def _count_answers(labels: np.ndarray, model: ModelPredictions, num_classes: int) -> ModelCounts:
    """Counts the answers of a classifier. `labels` are int64 [N]."""
    reached, is_right = _find_thresholds(model.confidences), model.classes == labels
    answered, right = (
        _count_pairs(model.classes[is_counted], reached[is_counted], num_classes)
        for is_counted in (np.ones(len(labels), bool), is_right)
    )
    support = np.bincount(labels, minlength=num_classes).tolist()
    mistakes = list[tuple[int, int, int, int]]()
    if num_classes <= MAX_MATRIX_CLASSES:
        wrong = np.stack([labels, model.classes, reached])[:, ~is_right]
        cells, counts = np.unique(wrong, axis=1, return_counts=True)
        mistakes = [
            (label, answer, index, count)
            for (label, answer, index), count in zip(cells.T.tolist(), counts.tolist(), strict=True)
        ]
    classes = zip(support, answered, right, strict=True)
    return ModelCounts(
        classes=[ClassCounts(support=s, answered=a, right=r) for s, a, r in classes],
        mistakes=mistakes,
    )


def _count_detections(matches: ClassMatches) -> ClassCounts:
    """Counts the detections of a class, of all sizes, by COCO's matching at an overlap of 0.5.

    The best score is matched first. So the detections below a threshold change no match above it.
    """
    reached, none = _find_thresholds(matches.scores), np.zeros(len(matches.scores), int)
    answered, right = (
        _count_pairs(none[is_counted], reached[is_counted], 1)[0]
        for is_counted in (matches.is_counted[0, 0], matches.is_right[0, 0])
    )
    return ClassCounts(support=int(matches.is_true[0].sum()), answered=answered, right=right)


def _find_thresholds(scores: np.ndarray) -> np.ndarray:
    """Returns the index of the highest threshold that each score reaches, int64 [N].

    Scores are compared as float32, as models answer them: 0.95 reaches the threshold 0.95.
    """
    thresholds = np.array(THRESHOLDS, np.float32)
    found: np.ndarray = np.searchsorted(thresholds, scores.astype(np.float32), side="right") - 1
    return np.maximum(found, 0)


def _count_pairs(classes: np.ndarray, reached: np.ndarray, num_classes: int) -> list[list[int]]:
    """Returns the number of answers for each class and threshold."""
    counts = np.bincount(classes * NUM_THRESHOLDS + reached, minlength=num_classes * NUM_THRESHOLDS)
    found: list[list[int]] = counts.reshape(num_classes, NUM_THRESHOLDS).tolist()
    return found


def _make_arrays(predictions: Predictions) -> dict[str, np.ndarray]:
    """Returns the arrays of `predictions.npz`, which `contract/predictions.py` describes."""
    keys = [key.encode(errors="replace") for key in predictions.keys]
    arrays: dict[str, np.ndarray] = {
        "keys": np.frombuffer(b"".join(keys), np.uint8),
        "key_ends": np.cumsum(list(map(len, keys)), dtype=np.int64),
        "labels": predictions.labels.astype(np.int32),
    }
    for prefix, model in zip(("", "champion_"), predictions.models, strict=False):
        arrays[f"{prefix}answers"] = model.classes.astype(np.int32)
        arrays[f"{prefix}confidences"] = model.confidences.astype(np.float16)
        arrays |= {f"{prefix}{name}": array for name, array in _keep_best(model.scores).items()}
    return arrays


def _keep_best(scores_CN: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the probabilities of each example as float16 [N, K].

    Of few classes, all are kept. Of many, the classes int32 [N, K] are in the result as well, the
    most probable one first. The scores are read block by block, as they are in a file.
    """
    blocks = _iterate_blocks(scores_CN)
    if len(scores_CN) <= MAX_MATRIX_CLASSES:
        return {"probabilities": np.concatenate([each.astype(np.float16) for each in blocks])}
    probabilities, classes = list[np.ndarray](), list[np.ndarray]()
    for block in blocks:
        best = np.argsort(-block, axis=1, kind="stable")[:, :_NUM_KEPT]
        classes.append(best.astype(np.int32))
        probabilities.append(np.take_along_axis(block, best, axis=1).astype(np.float16))
    return {"probabilities": np.concatenate(probabilities), "classes": np.concatenate(classes)}


def _iterate_blocks(scores_CN: np.ndarray) -> Iterable[np.ndarray]:
    for start in range(0, scores_CN.shape[1], _BLOCK_EXAMPLES):
        yield np.ascontiguousarray(scores_CN[:, start : start + _BLOCK_EXAMPLES].T)
