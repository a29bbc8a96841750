"""The mean average precision of validation: counts that add up, against COCO's evaluator."""

from __future__ import annotations

import functools
from typing import get_args

import numpy as np
import pytest

from pipeline_ops.config.evaluate import DetectionMetric

CLASSES, IMAGES, SIZE = 3, 24, 256


def random_scenes(seed: int):
    """Boxes in pixels with classes and crowds, and detections with distinct scores in hundredths
    of a range, for each image."""
    generator = np.random.default_rng(seed)
    scenes = []
    for _ in range(IMAGES):
        corners = generator.uniform(0, 100, (generator.integers(0, 6), 2))
        boxes = np.concatenate([corners, corners + generator.uniform(12, 150, corners.shape)], 1)
        classes = generator.integers(0, CLASSES, len(boxes))
        crowds = generator.random(len(boxes)) < 0.2
        noise = generator.normal(0, 7, (2 * len(boxes), 4))
        found = np.concatenate([boxes, boxes]) + noise
        is_mistaken = generator.random(len(found)) < 0.2
        other = generator.integers(0, CLASSES, len(found))
        kinds = np.where(is_mistaken, other, np.concatenate([classes, classes]))
        kept = (generator.random(len(found)) < 0.7) & (found[:, 2:] > found[:, :2] + 1).all(1)
        scenes.append((boxes, classes, crowds, found[kept], kinds[kept]))
    return scenes, generator


def to_batch(scenes, scores):
    import tensorflow as tf

    from pipeline_ops.models.boxes import Boxes, Detections

    def pad(arrays, width, value, kind):
        size = max(1, *(len(array) for array in arrays))
        shape = (len(arrays), size, width) if width else (len(arrays), size)
        padded = np.full(shape, value, kind)
        for row, array in zip(padded, arrays, strict=True):
            row[: len(array)] = array
        return tf.constant(padded)

    boxes, classes, crowds, found, kinds = zip(*scenes, strict=True)
    labels = Boxes(
        pad([each / SIZE for each in boxes], 4, 0, np.float32),
        pad(classes, 0, -1, np.int32),
        pad(crowds, 0, False, bool),
    )
    orders = [np.argsort(-each, kind="stable") for each in scores]
    return labels, Detections(
        pad([each[order] / SIZE for each, order in zip(found, orders, strict=True)], 4, 0, "f4"),
        pad([each[order] for each, order in zip(scores, orders, strict=True)], 0, 0, np.float32),
        pad([each[order] for each, order in zip(kinds, orders, strict=True)], 0, 0, np.int64),
        tf.constant([len(each) for each in found], tf.int32),
    )


def compute_with_coco(scenes, scores) -> dict[str, float]:
    from pipeline_ops.evaluation.detector import evaluate_boxes
    from pipeline_ops.served.client import ImageDetections, TrueBoxes

    truths = [TrueBoxes("", b"", *scene[:3]) for scene in scenes]
    found = [ImageDetections(*scene[3:], each) for scene, each in zip(scenes, scores, strict=True)]
    names = [str(number) for number in range(CLASSES)]
    return evaluate_boxes(truths, found, (1, 1), names).metrics


@pytest.mark.parametrize("name", get_args(DetectionMetric))
@pytest.mark.parametrize("seed", range(4))
def test_counts_of_batches_give_the_figure_of_coco(seed, name):
    from pipeline_ops.models.coco_counts import compute_metric, count_detections

    scenes, generator = random_scenes(seed)
    # Each detection of a class has a range of its own.
    ranges = generator.permutation(200)
    counts = [len(scene[3]) for scene in scenes]
    assert sum(counts) <= 200
    scores = np.split((ranges[: sum(counts)] + 0.5) / 200, np.cumsum(counts)[:-1])
    totals = 0
    for start in range(0, IMAGES, 7):
        part = slice(start, start + 7)
        labels, found = to_batch(scenes[part], scores[part])
        totals = totals + count_detections(name, found, labels, CLASSES, SIZE**2).numpy()
    expected = compute_with_coco(scenes, scores)[name]
    assert 0 < expected < 1
    assert compute_metric(name, totals) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "tolerance"), [("map_50", 0.02), ("map", 0.02), ("map_small", 0.02), ("mar_10", 1e-6)]
)
def test_continuous_scores_change_the_figure_by_little(name, tolerance):
    from pipeline_ops.models.coco_counts import compute_metric, count_detections

    scenes, generator = random_scenes(7)
    scores = [generator.random(len(scene[3])) for scene in scenes]
    batch = to_batch(scenes, scores)[::-1]
    counts = count_detections(name, *batch, CLASSES, SIZE**2).numpy()
    expected = compute_with_coco(scenes, scores)[name]
    assert compute_metric(name, counts) == pytest.approx(expected, abs=tolerance)


def test_a_split_without_boxes_has_the_figure_0():
    from pipeline_ops.models.coco_counts import compute_metric, count_detections

    nothing = np.empty((0, 4)), np.empty(0, int), np.empty(0, bool), np.empty((0, 4)), np.empty(0)
    labels, found = to_batch([nothing] * 2, [np.empty(0)] * 2)
    assert (
        compute_metric("map_50", count_detections("map_50", found, labels, CLASSES, 1).numpy()) == 0
    )


def test_a_batch_without_a_column_for_boxes_counts_only_wrong_detections():
    import tensorflow as tf

    from pipeline_ops.models.boxes import Boxes
    from pipeline_ops.models.coco_counts import count_detections

    box = np.array([[10, 10, 50, 50]])
    scene = box[:0], np.empty(0, int), np.empty(0, bool), box, np.array([1])
    _, found = to_batch([scene], [np.array([0.9])])
    labels = Boxes(tf.zeros([1, 0, 4]), tf.zeros([1, 0], tf.int32), tf.zeros([1, 0], tf.bool))
    counts = count_detections("map_50", found, labels, CLASSES, SIZE**2).numpy()
    assert counts.sum() == counts[1, 200:400].sum() == 1


@pytest.mark.parametrize("num_boxes", [1, 3])
def test_counts_of_a_traced_function_with_boxes_of_a_known_number(num_boxes):
    import tensorflow as tf

    from pipeline_ops.models.coco_counts import count_detections

    box = np.array([[10, 10, 50, 50]])
    boxes = np.repeat(box, num_boxes, axis=0)
    scene = boxes, np.zeros(num_boxes, int), np.zeros(num_boxes, bool), box, np.array([0])
    labels, found = to_batch([scene] * 4, [np.array([0.9])] * 4)
    traced = tf.function(functools.partial(count_detections, "map_50"), autograph=False)
    counts = traced(found, labels, CLASSES, SIZE**2).numpy()
    assert counts[0, :200].sum() == 4 and counts[:, 200:400].sum() == 0


@pytest.mark.parametrize("num_counted", [100, 300])
@pytest.mark.parametrize("name", ["map", "mar_100", "mar_10"])
def test_of_very_many_boxes_the_counts_are_those_of_the_evaluation(name, num_counted):
    """A perfect detector on 300 boxes of one class in an image, and on two in another one."""
    from pipeline_ops.evaluation.detector import evaluate_boxes
    from pipeline_ops.models.coco_counts import compute_metric, count_detections
    from pipeline_ops.served.client import ImageDetections, TrueBoxes

    grid = np.stack(np.meshgrid(np.arange(15), np.arange(20)), -1).reshape(-1, 2) * 12.0
    many = np.concatenate([grid, grid + 9], 1)
    images = [(boxes, np.zeros(len(boxes), int)) for boxes in (many, many[:2])]
    scores = [np.linspace(0.99, 0.5, len(boxes)) for boxes, _ in images]
    scenes = [(*each, np.zeros(len(each[1]), bool), *each) for each in images]
    labels, found = to_batch(scenes, scores)
    counts = count_detections(name, found, labels, CLASSES, SIZE**2, num_counted).numpy()
    truths = [TrueBoxes("", b"", *scene[:3]) for scene in scenes]
    answers = [ImageDetections(*each, score) for each, score in zip(images, scores, strict=True)]
    wanted = evaluate_boxes(truths, answers, (1, 1), ["0", "1", "2"], num_counted).metrics[name]
    assert compute_metric(name, counts) == pytest.approx(wanted, abs=1e-6)
    assert name == "mar_10" or (wanted == pytest.approx(1.0)) == (num_counted == 300)
