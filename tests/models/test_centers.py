"""The head of the detector without anchors: maps for boxes, and boxes for maps."""

from __future__ import annotations

import numpy as np
import pytest

GRID, CLASSES = (16, 24), 3
SIZE = np.array([64, 96, 64, 96])
BOXES = [[8, 10, 30, 40], [20, 50, 60, 90], [33, 3, 47, 12]]
"""ymin, xmin, ymax, xmax in pixels of an image of 64x96."""


def head():
    from pipeline_ops.models.center_detector import CenterHead

    return CenterHead(GRID, CLASSES)


def labels(boxes, classes, crowd=None):
    import tensorflow as tf

    from pipeline_ops.models.boxes import Boxes

    corners = np.array(boxes, np.float32).reshape(1, -1, 4) / SIZE
    return Boxes(
        tf.constant(corners, tf.float32),
        tf.constant([classes], tf.int32),
        tf.constant([crowd or [False] * len(classes)]),
    )


def perfect_outputs(truth):
    """Returns the outputs of a perfect network."""
    import tensorflow as tf

    targets = head().build_targets(truth)
    y, x = ((np.arange(size) + 0.5) * 4 for size in GRID)
    centers = np.stack(np.meshgrid(y, x, indexing="ij"), -1)
    corners = targets.corners.numpy()
    sides = np.concatenate([centers - corners[..., :2], corners[..., 2:] - centers], -1)
    return {
        "heat": tf.where(targets.heat >= 0.999, 12.0, -12.0),
        "sides": tf.constant(np.maximum(sides, 0), tf.float32),
    }


def test_perfect_maps_mean_the_boxes_that_they_were_made_of():
    found = head().detect(perfect_outputs(labels(BOXES, [0, 2, 1])))
    count = int(found.num_detections[0])
    assert count == 3
    answers = {
        int(c): box
        for c, box in zip(
            found.classes[0].numpy()[:count], found.boxes[0].numpy()[:count] * SIZE, strict=True
        )
    }
    for box, label in zip(BOXES, [0, 2, 1], strict=True):
        assert answers[label] == pytest.approx(box, abs=1e-3)


def test_perfect_maps_cost_nearly_nothing_and_wrong_ones_much():
    truth = labels(BOXES, [0, 2, 1])
    loss, heat_loss, iou, count = head().compute_sums(perfect_outputs(truth), truth).numpy()
    assert count == 3
    assert iou == pytest.approx(3, abs=1e-3)
    assert loss < 0.01
    assert head().compute_sums(perfect_outputs(labels(BOXES, [1, 0, 2])), truth).numpy()[1] > 50


def test_each_box_counts_one_whatever_the_number_of_its_cells():
    targets = head().build_targets(labels([*BOXES, [10, 60, 12, 62]], [0, 2, 1, 1]))
    assert float(np.sum(targets.weights)) == pytest.approx(4)


def test_of_two_boxes_with_centres_in_one_cell_the_smaller_one_is_learned():
    targets = head().build_targets(labels([[8, 8, 40, 40], [20, 20, 28, 28]], [0, 1]))
    assert targets.corners.numpy()[0, 6, 6] == pytest.approx([20, 20, 28, 28])


def test_padding_is_no_box():
    padded = labels([*BOXES, [0, 0, 0, 0]], [0, 2, 1, -1])
    outputs = perfect_outputs(labels(BOXES, [0, 2, 1]))
    assert head().compute_sums(outputs, padded).numpy() == pytest.approx(
        head().compute_sums(outputs, labels(BOXES, [0, 2, 1])).numpy()
    )


def test_what_is_found_in_a_crowd_is_neither_right_nor_wrong():
    crowd = labels([BOXES[0], BOXES[1]], [0, 2], [False, True])
    alone = labels([BOXES[0]], [0])
    imagined = perfect_outputs(labels(BOXES[:2], [0, 2]))
    assert head().compute_sums(imagined, crowd).numpy()[1] < 0.01
    assert head().compute_sums(imagined, alone).numpy()[1] > 5
    assert head().compute_sums(imagined, crowd).numpy()[3] == 1


def test_an_image_without_boxes_is_learned_from_too():
    empty = labels([[0, 0, 0, 0]], [-1])
    *_, count = head().compute_sums(perfect_outputs(labels(BOXES, [0, 2, 1])), empty).numpy()
    assert count == 0
    assert head().compute_sums(perfect_outputs(labels(BOXES, [0, 2, 1])), empty).numpy()[0] > 10


@pytest.mark.parametrize(("width", "low", "high"), [(16, 0.2e6, 0.3e6), (48, 1.8e6, 2.3e6)])
def test_the_width_makes_the_size(width, low, high):
    from pipeline_ops.models import center_detector

    assert low < center_detector.build((128, 128, 1), 10, width).count_params() < high


def test_images_that_the_grid_does_not_divide_are_refused():
    from pipeline_ops.errors import ConfigError
    from pipeline_ops.models import center_detector

    with pytest.raises(
        ConfigError,
        match="multiples of 16, got 100x128. Set them in preprocess.stages, with resize",
    ):
        center_detector.build((100, 128, 3), 2)


@pytest.mark.parametrize("count", [101, 130, 384])
def test_all_of_very_many_objects_are_found(count):
    """One object in each cell, and so on. 384 are all cells of the grid."""
    from pipeline_ops.contract.results import choose_max_detections
    from pipeline_ops.models.center_detector import make_head

    cells = [(4 * row, 4 * column) for row in range(GRID[0]) for column in range(GRID[1])]
    boxes = [[y + 0.5, x + 0.5, y + 3.5, x + 3.5] for y, x in cells[:count]]
    classes = [number % CLASSES for number in range(count)]
    outputs = perfect_outputs(labels(boxes, classes))
    limit = choose_max_detections(count)
    many = make_head((64, 96, 3), CLASSES, max_detections=limit)
    for found in (many.detect(outputs), many.detect_portably(outputs)):
        assert found.boxes.shape == (1, limit, 4) and int(found.num_detections[0]) == count
    assert int(head().detect(outputs).num_detections[0]) == 100


@pytest.mark.parametrize(("most_boxes", "expected"), [(0, 100), (100, 100), (101, 200), (600, 600)])
def test_a_detector_answers_as_many_boxes_as_an_image_of_its_data_has(most_boxes, expected):
    from pipeline_ops.config.train import Train
    from pipeline_ops.models import make_head

    for given in ({}, {"max_detections": None}):
        config = Train.model_construct(model="center_detector", model_parameters=given)
        assert make_head(config, (64, 96, 3), 2, most_boxes).max_detections == expected
    config = Train.model_construct(model="retinanet", model_parameters={"max_detections": 30})
    assert make_head(config, (64, 96, 3), 2, most_boxes).max_detections == 30


def test_a_detector_answers_at_least_one_box():
    from pipeline_ops.errors import ConfigError
    from pipeline_ops.models.center_detector import make_head

    with pytest.raises(ConfigError, match="max_detections must be at least 1, got 0"):
        make_head((64, 96, 3), 2, max_detections=0)
