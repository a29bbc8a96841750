"""COCO's metrics of a detector, on all test images, on a slice of them, or on a bootstrap draw.

Detections are matched with true boxes as in pycocotools (`cocoeval.py`), and the metrics are equal
(a test compares them). There is one exception: if an image has more than 100 boxes, more than 100
detections count, because no metric could reach 1 otherwise. Boxes are kept in arrays, which take
130 bytes a box. The dictionaries of COCO's libraries take a kilobyte.

A bootstrap needs the metrics a thousand times. The match of a detection does not depend on other
images, so a draw only weighs each image by the number of times it was drawn. The metrics of a draw
equal those of a data set with that many copies of each image. Only ties within one image may be
ordered differently.

Legend: N images, M true boxes of a class, D detections of a class, P of them right, T overlaps, R
ranges of sizes, B draws. Of one image, d detections of a class and m true boxes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from pipeline_ops.contract.results import COCO_DETECTIONS
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.metrics import NUM_SAMPLES, SEED, draw_weights
from pipeline_ops.precision_recall import RECALL_THRESHOLDS, read_precisions
from pipeline_ops.served.client import ImageDetections, TrueBoxes

_OVERLAPS = np.linspace(0.5, 0.95, 10)
RANGES = ("", "small", "medium", "large")
"""COCO's ranges of areas, as the suffixes of metrics. "" is every size."""
_AREAS = np.array([(0, 1e10), (0, 32.0**2), (32.0**2, 96.0**2), (96.0**2, 1e10)])
"""The smallest and the largest area of each range, in pixels."""
_FEWER_DETECTIONS = (1, 10)
"""The limits of `mar_1` and `mar_10`: detections of a class in an image."""
MAX_GROUPS, MAX_POINTS = 512, 256
"""The largest number of groups of images in a draw, and of points of its curves."""
_DENSE_FACTOR = 64
"""A matrix product computes this many cells in the time of one cell of `np.add.reduceat`."""


@dataclasses.dataclass(frozen=True)
class ClassMatches:
    """The detections of one class in all images, the best score first.

    Attributes:
      images: int [D], the image of each detection.
      ranks: int [D], its rank among the detections of the class in this image, from 0.
      scores: float64 [D], its score.
      is_right: bool [R, T, D], whether it is matched with a true box that has to be found.
      is_counted: bool [R, T, D], false for a detection that is neither right nor wrong.
      true_images: int [M], the image of each true box.
      is_true: bool [R, M], whether it has to be found.
    """

    images: np.ndarray
    ranks: np.ndarray
    scores: np.ndarray
    is_right: np.ndarray
    is_counted: np.ndarray
    true_images: np.ndarray
    is_true: np.ndarray

    def select(self, images: np.ndarray) -> ClassMatches:
        """Returns the matches in some images. Their indexes must be ascending."""
        kept, is_kept_true = np.isin(self.images, images), np.isin(self.true_images, images)
        return ClassMatches(
            np.searchsorted(images, self.images[kept]),
            self.ranks[kept],
            self.scores[kept],
            self.is_right[..., kept],
            self.is_counted[..., kept],
            np.searchsorted(images, self.true_images[is_kept_true]),
            self.is_true[:, is_kept_true],
        )

    def regroup(self, groups_N: np.ndarray) -> ClassMatches:
        """Returns the matches with the group of each image in its place. `groups_N` are int."""
        return dataclasses.replace(
            self, images=groups_N[self.images], true_images=groups_N[self.true_images]
        )


def match_all(
    scenes: Sequence[TrueBoxes],
    detections: Sequence[ImageDetections],
    image_size_pixels: tuple[int, int],
    num_classes: int,
    num_counted: int = COCO_DETECTIONS,
) -> list[ClassMatches]:
    """Returns the matches of one model for each class.

    `detections` are in the order of the scenes. `image_size_pixels` is (height, width).
    `num_counted` is the number of detections of a class in an image, the best ones, that count.
    Raises DataError if a box or a score is not finite, or if a class does not exist.
    """
    parts: list[list[ClassMatches]] = [[_NOTHING] for _ in range(num_classes)]
    for image, (scene, answer) in enumerate(zip(scenes, detections, strict=True)):
        true_boxes = _to_pixels(scene, scene.key, image_size_pixels, num_classes)
        boxes = _to_pixels(answer, scene.key, image_size_pixels, num_classes)
        order = np.argsort(-answer.scores, kind="stable")
        for index in np.union1d(scene.classes, answer.classes).tolist():
            chosen = order[answer.classes[order] == index][:num_counted]
            is_class = scene.classes == index
            part = _match(
                image,
                boxes[chosen],
                answer.scores[chosen],
                true_boxes[is_class],
                scene.is_crowd[is_class],
            )
            parts[index].append(part)
    return [_join(each) for each in parts]


def _to_pixels(
    found: TrueBoxes | ImageDetections,
    key: str,
    image_size_pixels: tuple[int, int],
    num_classes: int,
) -> np.ndarray:
    """Returns the boxes of one image in pixels with their areas, float64 [., 5].

    Ends are starts plus extents, because COCO's boxes have extents and no ends.
    """
    corners = found.boxes.astype(np.float64) * np.array([*image_size_pixels] * 2)
    bad = ~np.isfinite(corners).all(axis=1) | (found.classes < 0) | (found.classes >= num_classes)
    if isinstance(found, ImageDetections):
        bad |= ~np.isfinite(found.scores)
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"{key}: {'detection' if isinstance(found, ImageDetections) else 'true box'} {i} has "
            f"class {found.classes[i]} of {num_classes}, box {corners[i].tolist()}. "
            "Corners and score must be finite, and the class must exist."
        )
    boxes_5 = add_areas(corners)
    boxes_5[:, 2:4] = corners[:, :2] + (corners[:, 2:] - corners[:, :2])
    return boxes_5


def _match(
    image: int,
    boxes_d5: np.ndarray,
    scores_d: np.ndarray,
    true_boxes_m5: np.ndarray,
    is_crowd_m: np.ndarray,
) -> ClassMatches:
    """Matches the detections of a class in one image, the best score first.

    Each detection takes the free true box with the largest overlap, and the last one of several
    equal overlaps. A crowd stays free. Crowds and boxes outside of the range of areas do not have
    to be found: a detection takes one only if no other box is free.
    """
    is_other_size = ~_is_in_range(true_boxes_m5[:, 4])
    is_ignored_Rm = is_other_size | is_crowd_m
    shape = len(RANGES), len(_OVERLAPS), len(boxes_d5)
    is_right = np.zeros(shape, bool)
    is_counted = np.repeat(_is_in_range(boxes_d5[:, 4])[:, np.newaxis], shape[1], 1)
    is_taken = np.zeros((*shape[:2], len(true_boxes_m5)), bool)
    overlaps_dm = compute_overlaps(boxes_d5, true_boxes_m5, is_crowd_m)
    is_near_dm = overlaps_dm >= _OVERLAPS[0]
    for detection in np.flatnonzero(is_near_dm.any(axis=1)):
        near = np.flatnonzero(is_near_dm[detection])[::-1]  # so that argmax finds the last one
        overlaps = overlaps_dm[detection, near]
        is_free = ~is_taken[..., near] | is_crowd_m[near]
        is_free &= overlaps >= _OVERLAPS[:, np.newaxis]
        is_wanted = is_free & ~is_ignored_Rm[:, np.newaxis, near]
        is_found, is_matched = is_wanted.any(axis=-1), is_free.any(axis=-1)
        candidates = np.where(is_found[..., np.newaxis], is_wanted, is_free)
        best = near[np.where(candidates, overlaps, -1.0).argmax(axis=-1)]
        is_right[..., detection] = is_found
        is_counted[..., detection] = np.where(is_matched, is_found, is_counted[..., detection])
        places = np.nonzero(is_matched)
        is_taken[*places, best[places]] = True
    count = shape[-1]
    return ClassMatches(
        np.full(count, image),
        np.arange(count),
        scores_d.astype(np.float64),
        is_right,
        is_counted,
        np.full(len(true_boxes_m5), image),
        ~is_ignored_Rm,
    )


def _is_in_range(areas_d: np.ndarray) -> np.ndarray:
    """Returns whether each area is in each range, bool [R, d]. Ranges include both ends."""
    is_in_range: np.ndarray = (_AREAS[:, :1] <= areas_d) & (areas_d <= _AREAS[:, 1:])
    return is_in_range


def add_areas(boxes_n4: np.ndarray) -> np.ndarray:
    """Returns [n, 5], the corners ymin xmin ymax xmax of boxes and their areas."""
    extents = boxes_n4[:, 2:] - boxes_n4[:, :2]
    return np.column_stack([boxes_n4, extents.prod(axis=1)])


def compute_overlaps(
    boxes_d5: np.ndarray, true_boxes_m5: np.ndarray, is_crowd_m: np.ndarray
) -> np.ndarray:
    """Returns float64 [d, m]: intersection over union, and over the detection's area for a crowd.

    The formula is the one of pycocotools' `maskApi.c`, with the same rounding in borderline cases.
    Boxes have their areas (`add_areas`).
    """
    boxes, true_boxes = boxes_d5[:, np.newaxis], true_boxes_m5[np.newaxis]
    ends = np.minimum(boxes[..., 2:4], true_boxes[..., 2:4])
    height, width = np.moveaxis(ends - np.maximum(boxes[..., :2], true_boxes[..., :2]), -1, 0)
    shared = np.where((height > 0) & (width > 0), height * width, 0)
    areas, true_areas = boxes[..., 4], true_boxes[..., 4]
    whole = np.where(is_crowd_m, areas, areas + true_areas - shared)
    return np.divide(shared, whole, out=np.zeros(shared.shape), where=shared > 0)


_NO_INDEX = np.empty(0, np.int64)
_NO_MATCH = np.empty((len(RANGES), len(_OVERLAPS), 0), bool)
_NOTHING = ClassMatches(
    _NO_INDEX,
    _NO_INDEX,
    np.empty(0),
    _NO_MATCH,
    _NO_MATCH,
    _NO_INDEX,
    np.empty((len(RANGES), 0), bool),
)


def _join(parts: Sequence[ClassMatches]) -> ClassMatches:
    """Concatenates the matches of all images, and sorts the detections by score."""
    joined = ClassMatches(
        *(
            np.concatenate([getattr(part, field.name) for part in parts], axis=-1)
            for field in dataclasses.fields(ClassMatches)
        )
    )
    order = np.argsort(-joined.scores, kind="stable")
    return dataclasses.replace(
        joined,
        images=joined.images[order],
        ranks=joined.ranks[order],
        scores=joined.scores[order],
        is_right=joined.is_right[..., order],
        is_counted=joined.is_counted[..., order],
    )


def draw_figures(
    classes: Sequence[ClassMatches], num_images: int, ranges: Sequence[str] = RANGES
) -> dict[str, np.ndarray]:
    """Returns draws of COCO's metrics, by bootstrap over the images: float64 [B] by name.

    Models with the same images get the same draws. A metric is NaN in a draw without a box of its
    size. `ranges` are the ranges of areas of the returned metrics.

    Two approximations limit time and memory. Many images are divided into random groups, and draws
    are made of groups. A curve of many points is sampled, and each draw is corrected by the error
    of the sampled curve for all images.
    """
    ones, known = np.ones((num_images, 1)), compute_known_figures(classes, num_images, ranges)
    if num_images > MAX_GROUPS:
        groups_N = np.random.default_rng(SEED).permutation(num_images) % MAX_GROUPS
        classes, num_images = [each.regroup(groups_N) for each in classes], MAX_GROUPS
        ones = ones[:MAX_GROUPS]
    # Smaller blocks stay in the processor's cache.
    block_values = 4 * max(num_images, *(min(len(each.images), MAX_POINTS) for each in classes))
    blocks = [
        compute_figures(classes, weights.T, ranges, MAX_POINTS)
        for weights in draw_weights(ones[:, 0], NUM_SAMPLES, SEED, block_values)
    ]
    drawn = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    whole = compute_figures(classes, ones, ranges, MAX_POINTS)
    return {
        name: values + (known[name] - whole[name] if name in known else 0.0)
        for name, values in drawn.items()
    }


def compute_known_figures(
    classes: Sequence[ClassMatches], num_images: int, ranges: Sequence[str] = RANGES
) -> dict[str, float]:
    """Returns COCO's metrics of all images, without those of sizes that no box has."""
    found = compute_figures(classes, np.ones((num_images, 1)), ranges)
    return {name: value.item() for name, value in found.items() if not np.isnan(value)}


def compute_figures(
    classes: Sequence[ClassMatches],
    weights_NB: np.ndarray,
    ranges: Sequence[str] = RANGES,
    max_points: int | None = None,
) -> dict[str, np.ndarray]:
    """Returns COCO's metrics, float64 [B] by name. `weights_NB` says how often each image counts.

    They are means over the classes with boxes, and NaN without any. A precision-recall curve has a
    point for each right detection, up to `max_points`.
    """
    # Sums of whole numbers below 2**24 are exact.
    weights_NB = np.ascontiguousarray(weights_NB, np.float32)
    num_images = len(weights_NB)
    found: dict[str, np.ndarray] = {}
    for end in ranges:
        place = RANGES.index(end)
        num_true = np.array(
            [
                np.bincount(each.true_images[each.is_true[place]], minlength=num_images)
                @ weights_NB
                for each in classes
            ]
        )
        precisions, recalls = (
            np.zeros((len(classes), part, weights_NB.shape[1])) for part in (10, 3)
        )
        for index, each in enumerate(classes):
            precisions[index] = [
                _average_precision(each, place, overlap, weights_NB, num_true[index], max_points)
                for overlap in range(len(_OVERLAPS))
            ]
            for limit, most in enumerate((*_FEWER_DETECTIONS, np.inf)):
                is_right = each.is_right[place] & (each.ranks < most)
                right_N = np.bincount(each.images, is_right.sum(axis=0), num_images)
                right = right_N @ weights_NB / len(_OVERLAPS)
                recalls[index, limit] = right / np.maximum(num_true[index], 1)
        values = {f"map_{end}": precisions.mean(axis=1), f"mar_{end}": recalls[:, 2]}
        if not end:
            values = {"map": precisions.mean(axis=1)}
            values |= {"map_50": precisions[:, 0], "map_75": precisions[:, 5]}
            values |= {f"mar_{most}": recalls[:, i] for i, most in enumerate(_FEWER_DETECTIONS)}
            values[f"mar_{COCO_DETECTIONS}"] = recalls[:, 2]
        is_present = num_true > 0
        num_present = is_present.sum(axis=0)
        for name, by_class in values.items():
            total = (by_class * is_present).sum(axis=0)
            found[name] = np.where(num_present, total / np.maximum(num_present, 1), np.nan)
    return found


def _average_precision(
    matches: ClassMatches,
    place: int,
    overlap: int,
    weights_NB: np.ndarray,
    num_true_B: np.ndarray,
    max_points: int | None,
) -> np.ndarray:
    """Returns float64 [B], the mean of the precisions at COCO's recalls.

    Only the P right detections are points of the curve. A wrong detection lowers the precision and
    does not change the recall, so it never raises the interpolated curve.
    """
    counted = np.flatnonzero(matches.is_counted[place, overlap])
    right = np.flatnonzero(matches.is_right[place, overlap, counted])
    if not len(right):
        return np.zeros(weights_NB.shape[1])
    points_P = np.arange(len(right))
    if max_points and len(right) > max_points:
        points_P = np.linspace(0, len(right) - 1, max_points).round().astype(int)
    images = matches.images[counted[: right[-1] + 1]]
    right_PB = _add_up(weights_NB, images[right], points_P)
    all_PB = _add_up(weights_NB, images, right[points_P])
    precisions_PB = np.divide(right_PB, np.maximum(all_PB, 1), dtype=np.float64)
    # The best precision at this recall or above.
    best_PB = np.maximum.accumulate(precisions_PB[::-1], axis=0)[::-1]
    recalls_PB = np.divide(right_PB, np.maximum(num_true_B, 1), dtype=np.float64)
    # The number of COCO's recalls up to this recall. The first one is 0.
    steps_PB = (100 * recalls_PB + 1e-6).astype(np.int32)
    steps_PB += RECALL_THRESHOLDS[steps_PB] <= recalls_PB
    new_PB = np.diff(steps_PB, axis=0, prepend=0)
    return np.asarray((best_PB * new_PB).sum(axis=0) / len(RECALL_THRESHOLDS))


def trace_curves(matches: ClassMatches) -> np.ndarray:
    """Returns the precision at COCO's recalls for boxes of all sizes, float64 [T, 101]."""
    curves, num_true = np.zeros((len(_OVERLAPS), len(RECALL_THRESHOLDS))), matches.is_true[0].sum()
    for overlap, curve in enumerate(curves):
        is_right = matches.is_right[0, overlap, matches.is_counted[0, overlap]]
        right_P, found_P = is_right.cumsum()[is_right], np.flatnonzero(is_right) + 1
        curve[:] = read_precisions(right_P, found_P, num_true)
    return curves


def _add_up(weights_NB: np.ndarray, images_D: np.ndarray, lasts_P: np.ndarray) -> np.ndarray:
    """Returns the sums of the weights of all detections up to each of `lasts_P`: [P, B]."""
    shape = len(lasts_P), len(weights_NB)
    if shape[0] * shape[1] > _DENSE_FACTOR * len(images_D):
        starts = np.append(0, lasts_P[:-1] + 1)
        return np.add.reduceat(weights_NB[images_D], starts, axis=0).cumsum(axis=0)
    parts_D = np.searchsorted(lasts_P, np.arange(len(images_D)))
    cells = np.bincount(parts_D * shape[1] + images_D, minlength=shape[0] * shape[1])
    found: np.ndarray = (cells.reshape(shape).astype(np.float32) @ weights_NB).cumsum(axis=0)
    return found
