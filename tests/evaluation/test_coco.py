"""COCO's figures against pycocotools, to 1e-9: on random detections and on sets that were made to
be difficult."""

from __future__ import annotations

import contextlib
import io
import time
from typing import NamedTuple

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from pipeline_ops.config.evaluate import Rule
from pipeline_ops.contract.results import ModelEvaluation
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.coco import (
    MAX_GROUPS,
    MAX_POINTS,
    ClassMatches,
    compute_figures,
    compute_known_figures,
    draw_figures,
)
from pipeline_ops.evaluation.detector import (
    DetectionEvaluation,
    build_slice_groups,
    evaluate_boxes,
)
from pipeline_ops.evaluation.gate import judge
from pipeline_ops.evaluation.metrics import ExampleGroup, build_drawn_group, draw_weights
from pipeline_ops.served.client import ImageDetections, TrueBoxes

NAMES = (
    "map",
    "map_50",
    "map_75",
    "map_small",
    "map_medium",
    "map_large",
    "mar_1",
    "mar_10",
    "mar_100",
    "mar_small",
    "mar_medium",
    "mar_large",
)


class GroundTruths(NamedTuple):
    """True boxes of all images: the index of each one's image, corners in pixels, and so on."""

    images: np.ndarray
    boxes: np.ndarray
    classes: np.ndarray
    is_crowd: np.ndarray


class DetectionTable(NamedTuple):
    images: np.ndarray
    boxes: np.ndarray
    classes: np.ndarray
    scores: np.ndarray


def evaluate(
    truths: GroundTruths, detections: DetectionTable, num_images: int, num_classes: int
) -> DetectionEvaluation:
    """The figures of images of one pixel, so that fractions are pixels."""
    scenes = to_scenes(truths, detections, range(num_images))
    return evaluate_boxes(*scenes, (1, 1), [str(i) for i in range(num_classes)])


def to_scenes(truths, detections, images) -> tuple[list[TrueBoxes], list[ImageDetections]]:
    """Copies of the given images, each an image of its own."""
    scenes, answers = [], []
    for copy, image in enumerate(images):
        true, found = (
            [column[table.images == image] for column in table[1:]]
            for table in (truths, detections)
        )
        scenes.append(TrueBoxes(f"{copy}.png", b"", *true))
        answers.append(ImageDetections(*found))
    return scenes, answers


def make_boxes(generator: np.random.Generator, count: int, size: float) -> np.ndarray:
    corner, extent = (
        generator.uniform(0, 200, (count, 2)),
        generator.uniform(0.3, 1.7, (count, 2)) * size,
    )
    return np.concatenate([corner, corner + extent], axis=1)


def random_set(
    seed: int,
    num_images: int = 30,
    num_classes: int = 4,
    sizes=(20, 60, 200),
    ties: bool = False,
    crowds: float = 0.0,
    misses: float = 0.2,
    noise: float = 5.0,
    extra: int = 40,
) -> tuple[GroundTruths, DetectionTable, int, int]:
    """Boxes of several sizes, of which most are found, not quite where they are;
    and some that are nowhere."""
    generator = np.random.default_rng(seed)
    count = num_images * 4
    images, classes = (
        generator.integers(0, num_images, count),
        generator.integers(0, num_classes, count),
    )
    boxes = np.concatenate(
        [make_boxes(generator, count // len(sizes) + 1, size) for size in sizes]
    )[:count]
    truths = GroundTruths(images, boxes, classes, generator.random(count) < crowds)
    found = np.flatnonzero(generator.random(count) > misses)
    moved = boxes[found] + generator.normal(0, noise, (len(found), 4))
    moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 0.5)
    predicted = np.where(
        generator.random(len(found)) < 0.1,
        generator.integers(0, num_classes, len(found)),
        classes[found],
    )
    scores = generator.random(len(found) + extra)
    detections = DetectionTable(
        np.append(images[found], generator.integers(0, num_images, extra)),
        np.concatenate([moved, make_boxes(generator, extra, 50)]),
        np.append(predicted, generator.integers(0, num_classes, extra)),
        np.round(scores, 1) if ties else scores,
    )
    return truths, detections, num_images, num_classes


def nothing() -> DetectionTable:
    return DetectionTable(np.zeros(0, int), np.zeros((0, 4)), np.zeros(0, int), np.zeros(0))


def perfect(truths: GroundTruths) -> DetectionTable:
    return DetectionTable(
        truths.images, truths.boxes, truths.classes, np.full(len(truths.images), 0.9)
    )


def crowded_image() -> tuple[GroundTruths, DetectionTable, int, int]:
    """150 detections of one image, of which only the best 100 count."""
    generator = np.random.default_rng(5)
    boxes = make_boxes(generator, 150, 40)
    truths = GroundTruths(np.zeros(150, int), boxes, np.zeros(150, int), np.zeros(150, bool))
    return truths, DetectionTable(truths.images, boxes, truths.classes, generator.random(150)), 1, 1


def without_extent() -> tuple[GroundTruths, DetectionTable, int, int]:
    """Boxes that are points or lines, and detections of them."""
    boxes = np.array([[10, 10, 10, 10], [20, 20, 20, 40], [30, 30, 60, 60.0]])
    truths = GroundTruths(np.zeros(3, int), boxes, np.zeros(3, int), np.zeros(3, bool))
    return truths, perfect(truths), 1, 1


def at_the_borders() -> tuple[GroundTruths, DetectionTable, int, int]:
    """Areas of exactly 32 * 32 and 96 * 96, and overlaps of exactly 0.5 and 0.75."""
    truths = GroundTruths(
        np.arange(4),
        np.array([[0, 0, 32, 32], [0, 0, 96, 96], [0, 0, 10, 10], [0, 0, 10, 10.0]]),
        np.zeros(4, int),
        np.zeros(4, bool),
    )
    boxes = np.array([[0, 0, 32, 32], [0, 0, 96, 96], [0, 0, 10, 5], [0, 0, 10, 7.5]])
    return (
        truths,
        DetectionTable(np.arange(4), boxes, np.zeros(4, int), np.array([0.9, 0.8, 0.7, 0.6])),
        4,
        1,
    )


def doubled() -> tuple[GroundTruths, DetectionTable, int, int]:
    """Every box is found three times, with equal scores."""
    truths, _, num_images, num_classes = random_set(6)
    thrice = [
        np.concatenate([column] * 3) for column in (truths.images, truths.boxes, truths.classes)
    ]
    return truths, DetectionTable(*thrice, np.full(len(thrice[0]), 0.5)), num_images, num_classes


SETS = {
    "random": lambda: random_set(1),
    "many classes, most without a box": lambda: random_set(2, num_images=10, num_classes=80),
    "equal scores": lambda: random_set(3, ties=True),
    "crowds": lambda: random_set(4, crowds=0.3),
    "nothing but crowds": lambda: random_set(5, crowds=1.1),
    "only small ones": lambda: random_set(7, sizes=(8,), noise=1.0),
    "only large ones": lambda: random_set(8, sizes=(150,)),
    "perfect": lambda: (truths := random_set(9)[0], perfect(truths), 30, 4),
    "nothing found": lambda: (random_set(10)[0], nothing(), 30, 4),
    "nothing to be found": lambda: (
        GroundTruths(np.zeros(0, int), np.zeros((0, 4)), np.zeros(0, int), np.zeros(0, bool)),
        random_set(11)[1],
        30,
        4,
    ),
    "images without a box": lambda: (*random_set(12)[:2], 200, 4),
    "more than 100 in an image": crowded_image,
    "boxes without extent": without_extent,
    "exactly at the borders": at_the_borders,
    "every box three times": doubled,
    "far outside, and negative": lambda: (
        truths := random_set(13)[0],
        shifted(perfect(truths)),
        30,
        4,
    ),
}


def shifted(detections: DetectionTable) -> DetectionTable:
    return DetectionTable(
        detections.images, detections.boxes - 150.0, detections.classes, -detections.scores
    )


def by_pycocotools(
    truths: GroundTruths, detections: DetectionTable, num_images: int, num_classes: int
) -> COCOeval:
    def xywh(box):
        return [box[1], box[0], box[3] - box[1], box[2] - box[0]]

    gt = COCO()
    gt.dataset = {
        "images": [{"id": i} for i in range(num_images)],
        "categories": [{"id": i, "name": str(i)} for i in range(num_classes)],
        "annotations": [
            {
                "id": i + 1,
                "image_id": int(truths.images[i]),
                "category_id": int(truths.classes[i]),
                "bbox": xywh(truths.boxes[i].tolist()),
                "iscrowd": int(truths.is_crowd[i]),
                "area": float(np.prod(xywh(truths.boxes[i].tolist())[2:])),
            }
            for i in range(len(truths.images))
        ],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        gt.createIndex()
        found = [
            {
                "image_id": int(detections.images[i]),
                "category_id": int(detections.classes[i]),
                "bbox": xywh(detections.boxes[i].tolist()),
                "score": float(detections.scores[i]),
            }
            for i in range(len(detections.images))
        ]
        if found:
            results = gt.loadRes(found)
        else:  # pycocotools cannot load an empty list
            results = COCO()
            results.dataset = {**gt.dataset, "annotations": []}
            results.createIndex()
        evaluation = COCOeval(gt, results, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


@pytest.mark.parametrize("name", SETS)
def test_the_figures_are_those_of_pycocotools(name):
    made = SETS[name]()
    ours, theirs = (evaluate(*made), by_pycocotools(*made))
    np.testing.assert_allclose(
        [ours.metrics.get(name, -1.0) for name in NAMES], theirs.stats, rtol=0, atol=1e-9
    )
    precision = theirs.eval["precision"]
    by_class = ours.curves, ours.average_precisions, ours.average_precisions_50
    for index in range(made[-1]):
        curve, name = precision[0, :, index, 0, 2], str(index)
        assert {name in found for found in by_class} == {not (curve == -1).all()}
        if name in ours.curves:
            np.testing.assert_allclose(ours.curves[name], curve, rtol=0, atol=1e-9)
            assert ours.average_precisions[name] == pytest.approx(
                precision[:, :, index, 0, 2].mean(), abs=1e-9
            )
            assert ours.average_precisions_50[name] == pytest.approx(curve.mean(), abs=1e-9)


@pytest.mark.parametrize("seed", range(20, 32))
def test_the_figures_are_those_of_pycocotools_on_many_random_sets(seed):
    generator = np.random.default_rng(seed)
    made = random_set(
        seed,
        num_images=int(generator.integers(1, 25)),
        num_classes=int(generator.integers(1, 8)),
        ties=bool(generator.integers(2)),
        crowds=float(generator.uniform(0, 0.4)),
        misses=float(generator.uniform(0, 0.9)),
        noise=float(generator.uniform(0, 20)),
        extra=int(generator.integers(0, 150)),
    )
    ours, theirs = (evaluate(*made), by_pycocotools(*made))
    np.testing.assert_allclose(
        [ours.metrics.get(name, -1.0) for name in NAMES], theirs.stats, rtol=0, atol=1e-9
    )


def test_a_perfect_detector_has_a_perfect_curve():
    truths = random_set(9)[0]
    found = evaluate(truths, perfect(truths), 30, 4)
    assert found.metrics["map"] == pytest.approx(1.0) and all(
        (curve == 1.0).all() for curve in found.curves.values()
    )


@pytest.mark.parametrize("change", [{"boxes": np.nan}, {"classes": -1}, {"scores": np.inf}])
def test_a_detection_that_can_not_be_is_refused_with_its_image(change):
    truths, detections, num_images, num_classes = random_set(1)
    [(column, value)] = change.items()
    broken = getattr(detections, column).copy()
    broken[7] = value
    image = detections.images[7]
    number = int((detections.images[:7] == image).sum())
    with pytest.raises(DataError, match=rf"^{image}\.png: detection {number} has class"):
        evaluate(truths, detections._replace(**{column: broken}), num_images, num_classes)


def match_all(made) -> list[ClassMatches]:
    return evaluate(*made).matches


@pytest.mark.parametrize("name", SETS)
def test_a_draw_has_the_figures_of_a_data_set_with_copies_of_the_drawn_images(name):
    """Each image once, and two draws, in which images come up to four times or not at all.

    Sets with equal scores in an image have no draws: the copies there would have another order.
    """
    truths, detections, num_images, num_classes = made = SETS[name]()
    weights = np.random.default_rng(1).integers(0, 5, (3, num_images))
    weights[0] = 1
    if name in ("equal scores", "every box three times"):
        weights = weights[:1]
    found = compute_figures(match_all(made), weights.T)
    names = [str(i) for i in range(num_classes)]
    for draw, counts in enumerate(weights):
        copies = to_scenes(truths, detections, np.repeat(np.arange(num_images), counts))
        expected = evaluate_boxes(*copies, (1, 1), names).metrics
        np.testing.assert_allclose(
            [found[name][draw] for name in NAMES],
            [expected.get(name, np.nan) for name in NAMES],
            rtol=0,
            atol=1e-9,
        )


def test_the_matches_of_some_images_are_those_that_they_have_alone():
    truths, detections, num_images, num_classes = made = random_set(14, crowds=0.2)
    chosen = np.array([3, 4, 11, 20])
    found = compute_figures([each.select(chosen) for each in match_all(made)], np.ones((4, 1)))
    names = [str(i) for i in range(num_classes)]
    alone = evaluate_boxes(*to_scenes(truths, detections, chosen), (1, 1), names).metrics
    assert {name: value.item() for name, value in found.items()} == pytest.approx(alone, abs=1e-9)


@pytest.mark.models
def test_the_draws_of_a_thousand_images_take_seconds():
    """There are 100 detections in each image, of which most are wrong, and eight true boxes."""
    generator = np.random.default_rng(15)
    num_images, num_classes = 1000, 10
    truths = GroundTruths(
        np.repeat(np.arange(num_images), 8),
        make_boxes(generator, 8 * num_images, 60),
        generator.integers(0, num_classes, 8 * num_images),
        np.zeros(8 * num_images, bool),
    )
    extra = 92 * num_images
    detections = DetectionTable(
        np.append(truths.images, np.repeat(np.arange(num_images), 92)),
        np.concatenate([truths.boxes + 2.0, make_boxes(generator, extra, 60)]),
        np.append(truths.classes, generator.integers(0, num_classes, extra)),
        generator.random(100 * num_images)
        ** np.append(np.full(8 * num_images, 0.2), np.full(extra, 3)),
    )
    matches = match_all((truths, detections, num_images, num_classes))
    begin = time.process_time()
    draws = draw_figures(matches, num_images)
    assert time.process_time() - begin < 60
    assert draws["map"].shape == (1000,)
    assert 0.001 < draws["map"].std() < 0.05


def test_draws_of_groups_of_images_vary_as_those_of_the_images_do():
    """Both limits are reached: 1,500 images, and more right detections than points."""
    num_images = 3 * MAX_GROUPS
    matches = match_all(random_set(17, num_images=num_images, num_classes=2))
    assert min(each.is_right[0, 0].sum() for each in matches) > 2 * MAX_POINTS
    weights = next(draw_weights(np.ones(num_images), 400, 2, num_images))
    exact, limited = compute_figures(matches, weights.T), draw_figures(matches, num_images)
    for name in ("map", "map_50", "mar_100", "map_small"):
        spread = exact[name].std()
        assert limited[name].mean() == pytest.approx(exact[name].mean(), abs=0.25 * spread)
        assert limited[name].std() == pytest.approx(spread, rel=0.2)


def build_whole_group(models, num_images) -> ExampleGroup:
    figures = [
        ModelEvaluation(metrics=compute_known_figures(each, num_images), classes=[], confusion=[])
        for each in models
    ]
    return build_drawn_group(
        num_images, figures, (draw_figures(each, num_images) for each in models)
    )


@pytest.mark.parametrize(
    ("noise", "bound", "passed", "is_noise"),
    [
        ((5.0, 5.0), {"max_regression": 0.01}, True, False),  # the same answers
        ((9.0, 3.0), {"max_regression": 0.01}, False, False),  # clearly worse
        ((3.0, 9.0), {"min_improvement": 0.01}, True, False),  # clearly better
        ((5.0, 5.02), {"min_improvement": 0.0}, False, True),
    ],
)
@pytest.mark.parametrize("metric", ["map", "mar_100"])
@pytest.mark.models
def test_a_detector_is_compared_with_the_champion_at_a_confidence(
    metric, noise, bound, passed, is_noise
):
    models = [match_all(random_set(16, num_images=100, noise=each)) for each in noise]
    whole = build_whole_group(models, 100)
    low, high = whole.challenger.intervals[metric]
    assert low < whole.challenger.metrics[metric] < high
    [verdict] = judge([Rule(metric=metric, confidence=0.95, **bound)], whole)
    assert (verdict.passed, verdict.is_within_noise) == (passed, is_noise), verdict.text
    assert verdict.low <= verdict.value - verdict.champion <= verdict.high


def test_a_rule_for_a_slice_of_a_detector_is_judged_on_its_images_alone():
    """The boxes of the first ten images are found, those of the others are not."""
    truths = random_set(17, num_images=20)[0]
    found = DetectionTable(
        *(column[truths.images < 10] for column in perfect(truths))  # type: ignore[arg-type]
    )
    models = [match_all((truths, found, 20, 4))]
    slices = build_slice_groups(models, {"light": np.array(["day"] * 10 + ["night"] * 10)})
    rule = Rule(metric="map", at_least=0.5, of_slice="light")
    day, night = judge([rule], build_whole_group(models, 20), slices)
    assert (day.subject, day.value, day.passed) == ("light=day", pytest.approx(1.0), True)
    assert (night.subject, night.value, night.passed) == ("light=night", 0.0, False)
    assert slices[0].num_examples == 10
    assert slices[0].challenger.intervals["map"] == pytest.approx((1.0, 1.0))
