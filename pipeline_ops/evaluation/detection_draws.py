"""COCO's figures of a detector on any selection of the test images, also with repetitions.

faster-coco-eval computes the figures of all images once. A bootstrap needs them a thousand times.
The match of a detection with a true box does not depend on other images, so it is made once, as
pycocotools does (`COCOeval.evaluateImg`). A draw then only weighs each image by the number of times
that it was drawn. The figures of a draw equal those of a data set with as many copies of each image
(a test compares them). Only the order of equal scores in one image may differ: its copies do not
take turns.

Legend: N images, M true boxes of a class, D detections of a class, P of them right, T overlaps, R
ranges of sizes, B draws.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline_ops.evaluation.metrics import NUM_SAMPLES, RECALL_THRESHOLDS, SEED, draw_weights
from pipeline_ops.input.saved_model_client import ImageDetections, TrueBoxes

_OVERLAPS = np.linspace(0.5, 0.95, 10)
_RANGES = {
    "": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}
"""The areas in pixels, both ends included, by the ends of the names of their metrics."""
_LIMITS = (1, 10, 100)
"""The numbers of detections of a class in an image, the best ones, that count."""
Overlaps = Mapping[tuple[int, int], np.ndarray]
"""Float [detections, true boxes] for each image and class, the best detection first."""


@dataclasses.dataclass(frozen=True)
class ClassMatches:
    """The detections of one class in all images, the best score first.

    Attributes:
      images: int [D], the image of each detection.
      ranks: int [D], its place among the detections of the class in this image, from 0.
      is_right: bool [R, T, D].
      is_counted: bool [R, T, D], false for a detection that is neither right nor wrong.
      true_images: int [M], the image of each true box.
      is_true: bool [R, M], whether it is to be found.
    """

    images: np.ndarray
    ranks: np.ndarray
    is_right: np.ndarray
    is_counted: np.ndarray
    true_images: np.ndarray
    is_true: np.ndarray

    def select(self, images: np.ndarray) -> ClassMatches:
        """Returns the matches in some of the images, whose indexes are ascending."""
        kept, is_kept_true = np.isin(self.images, images), np.isin(self.true_images, images)
        return ClassMatches(
            np.searchsorted(images, self.images[kept]),
            self.ranks[kept],
            self.is_right[..., kept],
            self.is_counted[..., kept],
            np.searchsorted(images, self.true_images[is_kept_true]),
            self.is_true[:, is_kept_true],
        )


def match_classes(
    scenes: Sequence[TrueBoxes],
    detections: Sequence[ImageDetections],
    overlaps: Overlaps,
    size: tuple[int, int],
    num_classes: int,
) -> list[ClassMatches]:
    """Matches the detections of one model, in the order of the scenes, with the true boxes.

    `overlaps` are those of `evaluate_boxes`. `size` is height and width of the images in pixels.
    """
    ends = np.array(list(_RANGES.values())).T[:, :, None]
    no_detection = np.empty((len(_RANGES), len(_OVERLAPS), 0), bool)
    none, no_box = np.empty(0, np.int64), np.empty((len(_RANGES), 0), bool)
    nothing = ClassMatches(none, none, no_detection, no_detection, none, no_box)
    parts, scores = [[nothing] for _ in range(num_classes)], [[none] for _ in range(num_classes)]
    for image, (scene, answer) in enumerate(zip(scenes, detections, strict=True)):
        for index in np.union1d(scene.classes, answer.classes).tolist():
            own = scene.classes == index
            true_areas = _compute_areas(scene.boxes[own], size)
            is_outside = (true_areas < ends[0]) | (true_areas > ends[1])
            is_ignored = is_outside | scene.is_crowd[own]
            places = np.flatnonzero(answer.classes == index)
            places = places[np.argsort(-answer.scores[places], kind="stable")][: _LIMITS[-1]]
            areas = _compute_areas(answer.boxes[places], size)
            is_right = np.zeros((len(_RANGES), len(_OVERLAPS), len(places)), bool)
            # A detection that matches nothing counts as wrong, if its size is in the range.
            is_in_range = (areas >= ends[0]) & (areas <= ends[1])
            is_counted = np.repeat(is_in_range[:, None], len(_OVERLAPS), axis=1)
            ious = np.asarray(overlaps[image, index])
            if ious.size:
                _match(ious, is_ignored, scene.is_crowd[own], is_right, is_counted)
            scores[index].append(answer.scores[places])
            parts[index].append(
                ClassMatches(
                    np.full(len(places), image),
                    np.arange(len(places)),
                    is_right,
                    is_counted,
                    np.full(len(true_areas), image),
                    ~is_ignored,
                )
            )
    return [_join(*each) for each in zip(parts, scores, strict=True)]


def _join(parts: Sequence[ClassMatches], scores: Sequence[np.ndarray]) -> ClassMatches:
    """Joins the matches of all images, and sorts the detections by their scores."""
    order = np.argsort(-np.concatenate(scores), kind="stable")
    images, ranks, is_right, is_counted, true_images, is_true = (
        np.concatenate([getattr(part, field.name) for part in parts], axis=-1)
        for field in dataclasses.fields(ClassMatches)
    )
    return ClassMatches(
        images[order],
        ranks[order],
        is_right[..., order],
        is_counted[..., order],
        true_images,
        is_true,
    )


def _compute_areas(boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    ymin, xmin, ymax, xmax = (boxes.astype(np.float64) * np.array([*size, *size])).T
    areas: np.ndarray = (xmax - xmin) * (ymax - ymin)
    return areas


def _match(
    ious: np.ndarray,
    is_ignored: np.ndarray,
    is_crowd: np.ndarray,
    is_right: np.ndarray,
    is_counted: np.ndarray,
) -> None:
    """Matches the detections of one image and class, the best one first.

    A detection takes the true box that it overlaps most. It takes one that is ignored (bool [R,
    boxes]) only if no other is free, and is then neither right nor wrong. A crowd stays free. The
    results, for all ranges and overlaps, are written into the last two arguments.
    """
    is_free = np.ones((len(_RANGES), len(_OVERLAPS), len(is_crowd)), bool)
    ranges, thresholds = np.ogrid[: len(_RANGES), : len(_OVERLAPS)]
    # Below every overlap of a box that counts.
    keys = np.where(is_ignored[:, None], ious[:, None, None] - 2, ious[:, None, None])
    for i in np.flatnonzero((ious >= _OVERLAPS[0]).any(axis=1)):
        is_possible = is_free & (ious[i] >= _OVERLAPS[:, None])
        # Of equal overlaps, the last one.
        best = np.where(is_possible, keys[i], -np.inf)[..., ::-1].argmax(axis=-1)
        best = len(is_crowd) - 1 - best
        is_match = is_possible[ranges, thresholds, best]
        takes_ignored = is_ignored[ranges, best]
        is_right[..., i] = is_match & ~takes_ignored
        is_counted[..., i] = np.where(is_match, ~takes_ignored, is_counted[..., i])
        is_free[ranges, thresholds, best] &= ~is_match | is_crowd[best]


def draw_figures(classes: Sequence[ClassMatches], num_images: int) -> dict[str, np.ndarray]:
    """Returns draws of COCO's figures, by bootstrap over the images: float64 [B] by name.

    Models with the same images get the same draws. A figure that a draw does not have, because it
    holds no box of that size, is NaN.
    """
    # Smaller blocks stay in the processor's cache.
    block_values = 4 * max(num_images, *(len(each.images) for each in classes))
    blocks = [
        compute_figures(classes, weights.T)
        for weights in draw_weights(np.ones(num_images), NUM_SAMPLES, SEED, block_values)
    ]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def compute_known_figures(classes: Sequence[ClassMatches], num_images: int) -> dict[str, float]:
    """Returns COCO's figures of all images, without those of sizes that no box has."""
    found = compute_figures(classes, np.ones((num_images, 1)))
    return {name: value.item() for name, value in found.items() if not np.isnan(value)}


def compute_figures(
    classes: Sequence[ClassMatches], weights_NB: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns COCO's twelve figures, float64 [B] by name, with images that count several times.

    They are means over the classes with boxes, and NaN without any.
    """
    weights_NB = np.ascontiguousarray(weights_NB, np.int32)
    found: dict[str, np.ndarray] = {}
    for place, end in enumerate(_RANGES):
        num_true = np.array(
            [weights_NB[each.true_images[each.is_true[place]]].sum(axis=0) for each in classes]
        )
        precisions, recalls = (
            np.zeros((len(classes), part, weights_NB.shape[1])) for part in (10, 3)
        )
        for index, each in enumerate(classes):
            precisions[index] = [
                _average_precision(each, place, overlap, weights_NB, num_true[index])
                for overlap in range(len(_OVERLAPS))
            ]
            for limit, most in enumerate(_LIMITS):
                is_right = each.is_right[place] & (each.ranks < most)
                right = is_right.sum(axis=0) @ weights_NB[each.images] / len(_OVERLAPS)
                recalls[index, limit] = right / np.maximum(num_true[index], 1)
        values = {f"map_{end}": precisions.mean(axis=1), f"mar_{end}": recalls[:, 2]}
        if not end:
            values = {"map": precisions.mean(axis=1)}
            values |= {"map_50": precisions[:, 0], "map_75": precisions[:, 5]}
            values |= {f"mar_{most}": recalls[:, i] for i, most in enumerate(_LIMITS)}
        is_present = num_true > 0
        num_present = is_present.sum(axis=0)
        for name, by_class in values.items():
            total = (by_class * is_present).sum(axis=0)
            found[name] = np.where(num_present, total / np.maximum(num_present, 1), np.nan)
    return found


def _average_precision(
    matches: ClassMatches, place: int, overlap: int, weights_NB: np.ndarray, num_true_B: np.ndarray
) -> np.ndarray:
    """Returns float64 [B], the mean of the precisions at COCO's recalls.

    Only the P right detections matter: a wrong one is a point of lower precision at a recall that
    is there already.
    """
    counted = np.flatnonzero(matches.is_counted[place, overlap])
    places_P = np.flatnonzero(matches.is_right[place, overlap, counted])
    if not len(places_P):
        return np.zeros(weights_NB.shape[1])
    images = matches.images[counted[: places_P[-1] + 1]]
    right_PB = weights_NB[images[places_P]].cumsum(axis=0)
    starts = np.append(0, places_P[:-1] + 1)
    all_PB = np.add.reduceat(weights_NB[images], starts, axis=0, dtype=np.int32).cumsum(axis=0)
    precisions_PB = right_PB / np.maximum(all_PB, 1)
    # The best one at this recall or above.
    best_PB = np.maximum.accumulate(precisions_PB[::-1], axis=0)[::-1]
    recalls_PB = right_PB / np.maximum(num_true_B, 1)
    # The number of COCO's recalls that are reached. The first one, 0, always is.
    steps_PB = (100 * recalls_PB + 1e-6).astype(np.int32)
    steps_PB += RECALL_THRESHOLDS[steps_PB] <= recalls_PB
    new_PB = np.diff(steps_PB, axis=0, prepend=0)
    return (best_PB * new_PB).sum(axis=0) / len(RECALL_THRESHOLDS)
