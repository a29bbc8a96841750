"""The answers of a model that has not looked at the images: the same one for every image.

Their metrics are the baseline. A model that is no better has learned nothing from the images. Pure
functions. The metrics themselves are computed as those of a model.

Legend: N examples, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline_ops.evaluation.matching import ImageDetections
from pipeline_ops.evaluation.metrics import ModelPredictions
from pipeline_ops.evaluation.scores import compute_label_ranks
from pipeline_ops.input.saved_model_client import TrueBoxes


def answer_class_shares(labels: np.ndarray, num_classes: int) -> ModelPredictions:
    """Answers the shares of the classes among the labels (int64 [N]), as probabilities.

    So the answer is the most frequent class.
    """
    shares = np.bincount(labels, minlength=num_classes) / len(labels)
    answer = int(shares.argmax())
    ranks = compute_label_ranks(
        np.broadcast_to(shares, (num_classes, num_classes)), np.arange(num_classes)
    )
    return ModelPredictions(
        classes=np.full(len(labels), answer),
        ranks=ranks[labels],
        confidences=np.full(len(labels), shares[answer]),
        scores=np.broadcast_to(shares[:, None], (num_classes, len(labels))),
    )


def answer_mean_boxes(scenes: Sequence[TrueBoxes]) -> list[ImageDetections]:
    """Answers a box for each class, in the centre, with the mean height and width of its boxes.

    Its score is the share of the images that hold the class. The best score comes first.
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
