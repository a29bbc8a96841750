"""Suppression of duplicate boxes: the portable version equals TensorFlow's own operation."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from pipeline_ops.models.boxes import suppress, suppress_portably


def candidates(count: int, num_classes: int, size: float, seed: int):
    """Makes candidates of three images. Many scores are below the threshold."""
    generator = np.random.default_rng(seed)
    centers, halves = (
        generator.random((3, count, 2)),
        size * (0.2 + generator.random((3, count, 2))),
    )
    scores = generator.random((3, count)) ** 4
    boxes = np.concatenate([centers - halves, centers + halves], axis=-1).astype(np.float32)
    return (
        tf.constant(boxes),
        tf.constant(scores.astype(np.float32)),
        tf.constant(generator.integers(0, num_classes, (3, count)), tf.int32),
    )


@pytest.mark.parametrize(
    "count, num_classes, size",
    [(300, 10, 0.05), (300, 1, 0.3), (300, 2, 0.02), (40, 3, 0.2), (1, 1, 0.1)],
)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("limit", [7, 100, 260])
def test_both_ways_keep_the_same_boxes(count, num_classes, size, seed, limit):
    boxes, scores, classes = candidates(count, num_classes, size, seed)
    wanted, found = (
        suppress(boxes, scores, classes, num_classes, limit),
        suppress_portably(boxes, scores, classes, limit),
    )
    for name in wanted._fields:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), name)
    assert found.boxes.shape == (3, limit, 4)


def test_a_chain_of_boxes_each_hiding_the_next_is_followed_to_its_end():
    """Every second box stays: a suppressed box suppresses no other."""
    tops = 0.3 * np.arange(20, dtype=np.float32) / 20
    boxes = tf.constant(
        np.stack([tops, np.zeros(20), tops + 0.03, np.full(20, 0.1)], -1)[None].astype(np.float32)
    )
    scores = tf.constant(np.linspace(0.9, 0.5, 20, dtype=np.float32)[None])
    found = suppress_portably(boxes, scores, tf.zeros([1, 20], tf.int32))
    assert int(found.num_detections[0]) == 20  # they overlap by a third
    wide = boxes + tf.constant([0.0, 0.0, 0.06, 0.0])
    found = suppress_portably(wide, scores, tf.zeros([1, 20], tf.int32))
    wanted = suppress(wide, scores, tf.zeros([1, 20], tf.int32), 1)
    assert 1 < int(found.num_detections[0]) < 20 and int(found.num_detections[0]) == int(
        wanted.num_detections[0]
    )


def test_boxes_without_extent_are_no_problem():
    boxes = tf.zeros([1, 5, 4])
    assert np.isfinite(
        suppress_portably(boxes, tf.fill([1, 5], 0.5), tf.zeros([1, 5], tf.int32)).boxes
    ).all()
