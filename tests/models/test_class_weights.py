"""Weights of classes in the losses of detectors."""

from __future__ import annotations

import numpy as np
import pytest

CLASSES, PIXELS = 3, 128
BOXES = {0: [[8, 10, 50, 60], [60, 64, 110, 120]], 2: [[70, 5, 120, 55]]}
"""Corners in pixels, by class. There is no box of class 1."""


def make(kind: str, present=(0, 2)):
    """Returns a head, outputs that are the same everywhere, and boxes of some classes."""
    import tensorflow as tf

    from pipeline_ops.models import center_detector, retinanet
    from pipeline_ops.models.boxes import Boxes

    pairs = [(box, index) for index in present for box in BOXES[index]]
    corners = np.array([box for box, _ in pairs], np.float32).reshape(1, -1, 4) / PIXELS
    classes = np.array([[index for _, index in pairs]], np.int32)
    labels = Boxes(tf.constant(corners), tf.constant(classes), tf.zeros(classes.shape, tf.bool))
    shape = (PIXELS, PIXELS, 1)
    if kind == "center_detector":
        head = center_detector.make_head(shape, CLASSES)
        return (
            head,
            {"heat": tf.fill([1, *head.grid, CLASSES], -1.0), "sides": tf.ones([1, *head.grid, 4])},
            labels,
        )
    head = retinanet.make_head(shape, CLASSES)
    anchors = len(head.anchors)
    outputs = {"logits": tf.fill([1, anchors, CLASSES], -1.0), "deltas": tf.zeros([1, anchors, 4])}
    return head, outputs, labels


def compute(kind: str, weights, training: bool = True):
    """Returns loss, sums of the metrics, and count."""
    from pipeline_ops.models.detection import Detection

    head, outputs, labels = make(kind)
    task = Detection((PIXELS, PIXELS, 1), head, class_weights=weights)
    sums = task.compute_batch_sums(outputs, labels, training)
    return np.array([sums.loss, *sums.metrics[: len(task.metrics)], sums.count])


KINDS = pytest.mark.parametrize("kind", ["center_detector", "retinanet"])


@KINDS
def test_a_weight_multiplies_the_loss_where_a_box_of_its_class_is(kind):
    plain = compute(kind, None)
    assert compute(kind, [1.0, 1.0, 1.0]) == pytest.approx(plain)
    changes = {
        index: compute(kind, [3.0 if i == index else 1.0 for i in range(CLASSES)]) - plain
        for index in range(CLASSES)
    }
    for change in changes.values():
        # The loss of the boxes' edges, their IoU and the count stay.
        assert change[0] == pytest.approx(change[1], rel=1e-4)
        assert change[2:] == pytest.approx(0)
    assert changes[1][0] == 0
    together = compute(kind, [3.0, 1.0, 3.0]) - plain
    assert together[1] == pytest.approx(changes[0][1] + changes[2][1], rel=1e-4)
    probability = 1 / (1 + np.exp(1))
    positive = (1 - probability) ** 2 * -np.log(probability)
    if kind == "center_detector":  # one cell for each box
        assert [changes[0][1], changes[2][1]] == pytest.approx(
            [4 * positive, 2 * positive], rel=1e-4
        )
    else:  # of the anchors that stand for a box
        count = plain[-1]
        assert together[1] == pytest.approx(2 * 0.25 * count * positive, rel=1e-4)


@KINDS
def test_the_loss_of_the_validation_is_not_weighed(kind):
    weighted = compute(kind, [3.0, 1.0, 0.5], training=False)
    assert weighted == pytest.approx(compute(kind, None, training=False))
