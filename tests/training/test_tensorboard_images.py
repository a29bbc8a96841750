"""TensorBoard's pictures, by the colours of their pixels."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from pipeline_ops.models.detection import Boxes, Detections
from pipeline_ops.training.tensorboard import draw_boxes, draw_classes

GREY = np.full((2, 100, 120, 1), 128, np.uint8)
GREEN, BLUE, RED = (40, 160, 70), (40, 110, 220), (200, 50, 40)


def test_detections_are_on_the_left_and_labels_on_the_right():
    box, nothing = [0.5, 0.25, 1.0, 0.75], [0.0] * 4
    labels = Boxes(
        tf.constant([[box, nothing], [nothing, nothing]]),
        tf.constant([[1, -1], [-1, -1]]),
        tf.zeros([2, 2], tf.bool),
    )
    detections = Detections(
        tf.constant([[box, [0.0, 0.0, 0.2, 0.2]], [nothing, nothing]]),
        tf.constant([[0.9, 0.1], [0.0, 0.0]]),
        tf.constant([[1, 0], [0, 0]], tf.int64),
        tf.constant([2, 0]),
    )
    drawn = draw_boxes(GREY, labels, detections, ["cat", "dog"])
    assert drawn.shape == (2, 100, 240, 3)
    for left, color in ((30, GREEN), (150, BLUE)):
        assert (drawn[0, 50:, left] == color).all()
        assert (drawn[0, 99, left : left + 60] == color).all()
    assert (drawn[0, :50] == 128).all()  # a detection with a score of 0.1 is not shown
    assert (drawn[1] == 128).all()


def test_a_class_is_on_green_where_it_is_right_and_on_red_with_the_label_where_not():
    logits = tf.constant([[0.0, 1.0], [1.0, 0.0]])
    drawn = draw_classes(GREY, tf.constant([1, 1]), logits, ["cat", "dog"])
    assert drawn.shape == (2, 114, 120, 3)
    assert (drawn[0, 113, 119] == GREEN).all()
    assert (drawn[1, 113, 119] == RED).all()
