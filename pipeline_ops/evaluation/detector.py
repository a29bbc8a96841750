"""Evaluation of a detector: COCO's metrics, and counts of the mistakes that a person would see.

It is the counterpart of `classifier.py`. Both models run as they are served. Boxes are compared in
pixels of the data set's images. COCO's metrics cover all score thresholds and treat each class by
itself (`coco.py`). Mistakes (confused, missed, false alarm) are counted at the score threshold with
the largest F1.

Legend: C classes; T true boxes and D detections of one image. Boxes [., 4] are ymin xmin ymax xmax.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from pipeline_ops.config.evaluate import DetectionMetric, Evaluate
from pipeline_ops.contract.results import (
    COCO_DETECTIONS,
    AsServed,
    ModelEvaluation,
    NotFinite,
    choose_num_counted,
)
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.as_served import MIN_BOX_AGREEMENT, answer_files, find_raw_tests
from pipeline_ops.evaluation.coco import (
    RANGES,
    ClassMatches,
    add_areas,
    compute_known_figures,
    compute_overlaps,
    draw_figures,
    match_all,
    trace_curves,
)
from pipeline_ops.evaluation.inputs import Inputs, measure_models
from pipeline_ops.evaluation.metrics import (
    SEED,
    Curves,
    ExampleGroup,
    build_drawn_group,
    compute_class_figures,
    compute_interval_95,
)
from pipeline_ops.evaluation.slices import (
    SliceValues,
    iterate_values,
    list_features,
)
from pipeline_ops.job.runner import Job
from pipeline_ops.served.client import (
    EncodedBatch,
    ImageDetections,
    SavedModelClient,
    TrueBoxes,
    read_true_boxes,
)
from pipeline_ops.served.contract import DECODE, DETECTOR_OUTPUTS
from pipeline_ops.served.references import EqualBoxes, describe_other_detections

_MAX_BATCH_IMAGES = 32
_MAX_NAMED = 10
_SCORES = DETECTOR_OUTPUTS[1]
_MIN_IOU = 0.5
_LOWEST_SCORE, _HIGHEST_SCORE = 0.05, 0.95
_DEFAULT_SCORE = 0.5
"""The threshold of a model without a right detection."""
_EQUAL_BOXES = EqualBoxes(min_score=0.5, min_overlap=0.5, max_score_difference=0.2)
"""Tolerant, because the images in shards may have been compressed once more than raw files."""
_METRIC, _MAX_OTHER_METRIC = "map_50", 0.005
"""The metric to compare between raw files and images, and a negligible difference."""
_SIZES = {"small": 32.0**2, "medium": 96.0**2, "large": float("inf")}
"""The upper limits of COCO's sizes, areas in pixels."""


@dataclasses.dataclass(frozen=True)
class DetectionEvaluation:
    """COCO's metrics of one model, and its precision by class.

    A metric of a size that no box has is missing. `average_precisions_50` and `curves` are at an
    overlap of 0.5. Classes without a true box are missing in all three. `matches` has an entry for
    each class.
    """

    metrics: dict[str, float]
    average_precisions: dict[str, float]
    average_precisions_50: dict[str, float]
    curves: Curves
    matches: list[ClassMatches]


@dataclasses.dataclass(frozen=True)
class DetectorFindings:
    """The figures of the models, before the verdict.

    `evaluations` has an entry for each model. The fields after it are about the challenger.
    """

    whole: ExampleGroup
    evaluations: list[DetectionEvaluation]
    by_size: dict[str, list[int]]
    """Two counts for each size: boxes, and boxes that were found with the right class."""
    scenes: list[TrueBoxes]
    detections: list[ImageDetections]
    min_score: float
    """The recommended score threshold, at which mistakes are counted and drawn."""
    read_images: Callable[[Collection[str]], dict[str, bytes]]
    """Reads images by key. `scenes` hold no images."""
    num_counted: int = COCO_DETECTIONS
    """The number of detections of a class in an image, the best ones, that count."""
    notes: Sequence[str] = ()
    """Sentences about missing figures, and about images with very many boxes."""
    slices: Sequence[ExampleGroup] = ()
    as_served: AsServed = AsServed()
    seeds: dict[str, int] = dataclasses.field(default_factory=lambda: {"bootstrap": SEED})

    @property
    def curves(self) -> list[Curves]:
        return [model.curves for model in self.evaluations]

    def build_metrics(self) -> dict[str, Any]:
        """Returns the part of `metrics.json` that only a detector has."""
        return {
            "by_size": self.by_size,
            "recommended_min_score": self.min_score,
            "num_counted_detections": self.num_counted,
        }


def evaluate_detector(job: Job, config: Evaluate, inputs: Inputs) -> DetectorFindings:
    names, image_size_pixels = inputs.class_names, inputs.dataset.figures.image_shape[:2]
    clients = [
        SavedModelClient(model.saved_model, model.name, len(names), DETECTOR_OUTPUTS)
        for model in inputs.models
    ]
    scenes, detections, slices, limits = _detect_all(job, config, inputs, clients)
    most_boxes = max(inputs.dataset.figures.most_boxes, max(len(each.boxes) for each in scenes))
    num_counted = choose_num_counted(most_boxes, limits)
    read = functools.partial(read_images, inputs.test_shards, inputs.removed_test_positions)
    measures = measure_models(config, inputs, clients)
    found = compute_findings(
        scenes, detections, image_size_pixels, names, measures, read, num_counted
    )
    notes = describe_counting(num_counted, scenes, limits, [each.name for each in inputs.models])
    return dataclasses.replace(
        found,
        notes=[*found.notes, *notes],
        slices=build_slice_groups([each.matches for each in found.evaluations], slices),
        as_served=_compare_files(job, inputs, clients[0], scenes, found.detections, num_counted),
    )


def compute_findings(
    scenes: list[TrueBoxes],
    detections: Sequence[list[ImageDetections]],
    image_size_pixels: tuple[int, int],
    names: Sequence[str],
    measures: Sequence[dict[str, float]],
    read_images: Callable[[Collection[str]], dict[str, bytes]],
    num_counted: int = COCO_DETECTIONS,
) -> DetectorFindings:
    """Computes all figures of the challenger and, if there is one, of the champion.

    `detections` and `measures` have an entry for each model. Metrics without true boxes are
    missing.
    """
    evaluations, models, thresholds, sizes = [], [], [], []
    keys = [scene.key for scene in scenes]
    kept = [drop_not_finite(keys, found, NotFinite()) for found in detections]
    for (found, not_finite), measured in zip(kept, measures, strict=True):
        evaluations.append(evaluate_boxes(scenes, found, image_size_pixels, names, num_counted))
        thresholds.append(recommend_min_score(scenes, found))
        confusion, by_size = count_mistakes(
            scenes, found, image_size_pixels, len(names), thresholds[-1]
        )
        sizes.append(by_size)
        average_precisions = evaluations[-1].average_precisions
        classes = [
            each.model_copy(update={"average_precision": average_precisions.get(each.name)})
            for each in compute_class_figures(confusion, names)
        ]
        models.append(
            ModelEvaluation(
                metrics=evaluations[-1].metrics,
                classes=classes,
                confusion=confusion.tolist(),
                measures=measured,
                not_finite=not_finite,
            )
        )
    draws = (draw_figures(each.matches, len(scenes)) for each in evaluations)
    baseline = evaluate_boxes(scenes, answer_mean_boxes(scenes), image_size_pixels, names).metrics
    return DetectorFindings(
        build_drawn_group(len(scenes), models, draws, baseline=baseline),
        evaluations,
        sizes[0],
        scenes,
        kept[0][0],
        thresholds[0],
        read_images,
        num_counted,
        describe_gaps(scenes, names),
    )


def _compare_files(
    job: Job,
    inputs: Inputs,
    client: SavedModelClient,
    scenes: Sequence[TrueBoxes],
    detections: Sequence[ImageDetections],
    num_counted: int,
) -> AsServed:
    """Compares the challenger's answers to raw files with `detections`, its answers to scenes."""
    tests = find_raw_tests(inputs, client)
    if tests.reason:
        return AsServed(reason=tests.reason)
    job.progress.report("as served", message="sending raw test files to the challenger")
    rows = {scene.key: row for row, scene in enumerate(scenes) if scene.key in tests.keys}
    chosen, found, not_finite = list[int](), list[ImageDetections](), NotFinite()
    answers, windows = answer_files(client, tests), answer_files(client, tests, DECODE)
    for (keys, outputs), (_, decoded) in zip(answers, windows, strict=True):
        chosen += [rows[key] for key in keys]
        boxes, not_finite = drop_not_finite(keys, to_image_detections(outputs), not_finite)
        found += map(_move_into_window, boxes, decoded["windows"])
    image_size_pixels, names = inputs.dataset.figures.image_shape[:2], inputs.class_names
    chosen_scenes = [scenes[row] for row in chosen]
    chosen_detections = [detections[row] for row in chosen]
    from_files, from_images = (
        evaluate_boxes(chosen_scenes, each, image_size_pixels, names, num_counted)
        for each in (found, chosen_detections)
    )
    if _METRIC not in from_files.metrics:
        return AsServed(reason="the raw test files show no box to find")
    agreement = float(np.mean(list(map(_have_equal_boxes, found, chosen_detections))))
    draws, other_draws = (
        draw_figures(each.matches, len(chosen), RANGES[:1])[_METRIC]
        for each in (from_files, from_images)
    )
    low, high = np.nanquantile(draws - other_draws, [0.005, 0.995])
    is_noise = low <= 0 <= high or max(abs(low), abs(high)) < _MAX_OTHER_METRIC
    interval = compute_interval_95(draws[~np.isnan(draws)])
    return AsServed(
        num_files=len(chosen),
        agreement=agreement,
        metric=_METRIC,
        from_files=from_files.metrics[_METRIC],
        from_images=from_images.metrics[_METRIC],
        low=interval[0],
        high=interval[1],
        passed=agreement >= MIN_BOX_AGREEMENT and bool(is_noise) and not not_finite.count,
        not_finite=not_finite,
    )


def _move_into_window(found: ImageDetections, window_4: np.ndarray) -> ImageDetections:
    """Returns boxes as fractions of the model's window of an image, as scenes have them.

    `window_4` has the corners of the window.
    """
    low, extent = window_4[:2], window_4[2:] - window_4[:2]
    boxes = (found.boxes - np.tile(low, 2)) / np.tile(extent, 2)
    return ImageDetections(np.clip(boxes, 0.0, 1.0), found.classes, found.scores)


def _have_equal_boxes(found: ImageDetections, other: ImageDetections) -> bool:
    one, two = (
        np.column_stack([each.boxes, each.scores, each.classes]).reshape(-1, 6)
        for each in (found, other)
    )
    return not describe_other_detections(one, two, _EQUAL_BOXES)


def build_slice_groups(
    models: Sequence[Sequence[ClassMatches]], slices: Mapping[str, np.ndarray]
) -> list[ExampleGroup]:
    """Returns a group with COCO's metrics for each value of each slice.

    `models` has the matches of each model. `slices` has the value (text, [N]) of every image, by
    the slice's name.
    """
    groups = []
    for name, value, indexes in iterate_values(slices):
        parts = [[each.select(indexes) for each in matches] for matches in models]
        evaluations = [
            ModelEvaluation(
                metrics=compute_known_figures(part, len(indexes)), classes=[], confusion=[]
            )
            for part in parts
        ]
        draws = (draw_figures(part, len(indexes)) for part in parts)
        groups.append(build_drawn_group(len(indexes), evaluations, draws, name, value))
    return groups


def _detect_all(
    job: Job, config: Evaluate, inputs: Inputs, clients: Sequence[SavedModelClient]
) -> tuple[list[TrueBoxes], list[list[ImageDetections]], dict[str, np.ndarray], list[int]]:
    """Runs every model on every test image.

    Returns the scenes without their images, the answers of each model, the values of the slices,
    and the largest number of detections in an answer of each model. Only the images of one batch
    are in memory. Raises DataError if the number of images is not the one of the manifest.
    """
    scenes, total = list[TrueBoxes](), inputs.num_test_examples
    features = list_features(config.slices)
    detections: list[list[ImageDetections]] = [[] for _ in clients]
    limits = [0] * len(clients)
    values = SliceValues(config.slices)
    shards, removed = inputs.test_shards, inputs.removed_test_positions
    read = iter(read_true_boxes(shards, removed, features))
    while part := list(itertools.islice(read, min(config.batch_size, _MAX_BATCH_IMAGES))):
        batch = EncodedBatch(
            [scene.key for scene in part],
            np.array([scene.image for scene in part], object),
            np.full(len(part), -1),
            {name: [scene.features[name] for scene in part] for name in features},
        )
        for index, client in enumerate(clients):
            outputs = client.predict(batch)
            limits[index] = outputs[_SCORES].shape[1]
            detections[index] += to_image_detections(outputs)
        values.add(batch)
        scenes += [dataclasses.replace(scene, image=b"") for scene in part]
        job.progress.report("evaluate", len(scenes), total, "images")
    if len(scenes) != total:
        raise DataError(
            f"{inputs.dataset.uri}: the test shards hold {len(scenes)} examples, "
            f"the manifest lists {total}. Run preprocess again."
        )
    return scenes, detections, values.join(), limits


def describe_gaps(scenes: Sequence[TrueBoxes], class_names: Sequence[str]) -> list[str]:
    """Names the metrics that are missing because the test split has no box for them."""
    classes = np.concatenate([each.classes for each in scenes]).astype(int)
    counted = classes[~np.concatenate([each.is_crowd for each in scenes])]
    if not len(classes):
        return ["Not measured: the test split has no boxes."]
    if not len(counted):
        crowds = f"all of its {len(classes)} boxes are crowds, which no detector has to find"
        return [f"Not measured: the test split has no boxes to find, {crowds}."]
    missing = [name for index, name in enumerate(class_names) if not (counted == index).any()]
    if not missing:
        return []
    more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
    shown = f"{', '.join(missing[:_MAX_NAMED])}{more}"
    return [f"Not measured: the test split has no boxes of {shown}."]


def describe_counting(
    num_counted: int, scenes: Sequence[TrueBoxes], limits: Sequence[int], models: Sequence[str]
) -> list[str]:
    """Names deviations from COCO's metrics, and models that cannot find all boxes of an image."""
    most = max(scenes, key=lambda scene: int((~scene.is_crowd).sum()))
    most_boxes, notes = int((~most.is_crowd).sum()), []
    if num_counted > COCO_DETECTIONS:
        notes.append(
            f"Up to {num_counted} detections of a class in an image count, and not COCO's "
            f"{COCO_DETECTIONS}: an image of the data set has more boxes than that."
        )
    return notes + [
        f"{most.key} has {most_boxes} boxes, and {name} answers {limit} at most: it cannot find "
        "the others. Raise train.model_parameters.max_detections."
        for name, limit in zip(models, limits, strict=True)
        if limit < most_boxes
    ]


def read_images(
    shards: Sequence[str], removed: Sequence[Sequence[int]], keys: Collection[str]
) -> dict[str, bytes]:
    """Reads the images of some examples, by key."""
    found = read_true_boxes(shards, removed)
    return {scene.key: scene.image for scene in found if scene.key in keys}


def to_image_detections(outputs: dict[str, np.ndarray]) -> list[ImageDetections]:
    return [
        ImageDetections(boxes[:count], classes[:count], scores[:count])
        for boxes, scores, classes, count in zip(
            *(outputs[name] for name in DETECTOR_OUTPUTS), strict=True
        )
    ]


def drop_not_finite(
    keys: Sequence[str], detections: Sequence[ImageDetections], found: NotFinite
) -> tuple[list[ImageDetections], NotFinite]:
    """Removes detections whose box or score is not finite, so they find no object.

    Returns the other detections, and `found` with the keys of the images that lost any.
    """
    kept, are_finite = list[ImageDetections](), list[bool]()
    for answer in detections:
        is_finite = np.isfinite(answer.boxes).all(axis=1) & np.isfinite(answer.scores)
        are_finite.append(bool(is_finite.all()))
        if not are_finite[-1]:
            parts = (answer.boxes, answer.classes, answer.scores)
            answer = ImageDetections(*(part[is_finite] for part in parts))
        kept.append(answer)
    return kept, found.add(keys, are_finite)


def answer_mean_boxes(scenes: Sequence[TrueBoxes]) -> list[ImageDetections]:
    """Returns the baseline's answers: a centred box for each class in every image.

    The box has the mean height and width of the class's boxes. Its score is the share of images
    with the class. The best score comes first.
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


def match_boxes(truth: TrueBoxes, detected: ImageDetections) -> tuple[np.ndarray, np.ndarray]:
    """Matches the detections of one image with its true boxes, the best score first.

    Each detection takes a free true box: of its own class if there is one, then with the largest
    overlap, and the first one of several equal overlaps. COCO's matching (`coco.py`) never crosses
    classes.

    Returns:
      int [D], the true box of each detection, -1 for none.
      bool [D], true for a detection in a crowd, which is neither right nor wrong.
    """
    boxes = add_areas(detected.boxes), add_areas(truth.boxes)
    ious = compute_overlaps(*boxes, truth.is_crowd)
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


def recommend_min_score(
    scenes: Sequence[TrueBoxes], detections: Sequence[ImageDetections]
) -> float:
    """Returns the score threshold with the largest F1, a multiple of 0.01.

    The best detections are matched first, so detections below a threshold do not change the matches
    above it. `detections` are the answers of one model.
    """
    scores, hits, num_true = [np.empty(0)], [np.empty(0, bool)], 0
    for scene, answer in zip(scenes, detections, strict=True):
        detected = answer.filter_by_score(_LOWEST_SCORE)
        truth_indexes, is_ignored = match_boxes(scene, detected)
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
    image_size_pixels: tuple[int, int],
    num_classes: int,
    min_score: float,
) -> tuple[np.ndarray, dict[str, list[int]]]:
    """Counts the mistakes that a person would see at the score threshold.

    Returns:
      The confusion matrix, int [C + 1, C + 1]. Row i, column j counts boxes of class i that were
      taken for class j. The last row counts false alarms, the last column missed boxes.
      Two counts for each size: boxes, and boxes that were found with the right class.
    """
    confusion = np.zeros((num_classes + 1, num_classes + 1), int)
    by_size = np.zeros((len(_SIZES), 2), int)
    height, width = image_size_pixels
    for scene, answer in zip(scenes, detections, strict=True):
        detected = answer.filter_by_score(min_score)
        truth_indexes, is_ignored = match_boxes(scene, detected)
        predicted = np.full(len(scene.boxes), num_classes)
        is_matched = truth_indexes >= 0
        predicted[truth_indexes[is_matched]] = detected.classes[is_matched]
        counted = ~scene.is_crowd
        classes, predicted = scene.classes[counted], predicted[counted]
        np.add.at(confusion, (classes, predicted), 1)
        np.add.at(confusion, (num_classes, detected.classes[~is_matched & ~is_ignored]), 1)
        areas = add_areas(scene.boxes[counted])[:, 4] * height * width
        sizes = np.digitize(areas, list(_SIZES.values()))
        np.add.at(by_size, (sizes, 0), 1)
        np.add.at(by_size, (sizes, 1), classes == predicted)
    return confusion, dict(zip(_SIZES, by_size.tolist(), strict=True))


def evaluate_boxes(
    scenes: Sequence[TrueBoxes],
    detections: Sequence[ImageDetections],
    image_size_pixels: tuple[int, int],
    class_names: Sequence[str],
    num_counted: int = COCO_DETECTIONS,
) -> DetectionEvaluation:
    """Computes COCO's metrics of one model.

    `detections` are in the order of the scenes. `image_size_pixels` is (height, width).
    `num_counted` is the number of detections of a class in an image, the best ones, that count.
    Raises DataError if a box or a score is not finite, or if a class does not exist.
    """
    matches = match_all(scenes, detections, image_size_pixels, len(class_names), num_counted)
    found = compute_known_figures(matches, len(scenes))
    curves = {
        name: trace_curves(each)
        for name, each in zip(class_names, matches, strict=True)
        if each.is_true[0].any()
    }
    return DetectionEvaluation(
        {name: found[name] for name in get_args(DetectionMetric) if name in found},
        {name: float(values.mean()) for name, values in curves.items()},
        {name: float(values[0].mean()) for name, values in curves.items()},
        {name: values[0] for name, values in curves.items()},
        matches,
    )
