"""TensorBoard's pictures, by the colours of their pixels."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from pipeline_ops.models.boxes import Boxes, Detections
from pipeline_ops.training.tensorboard import draw_boxes, draw_classes

GREY = np.full((2, 100, 120, 1), 128, np.uint8)
TEXT = slice(260, 294)


def find_colors(pixels: np.ndarray) -> set[str]:
    """Which of red, green and blue stands out anywhere."""
    values = pixels.reshape(-1, 3).astype(int)
    stands_out = {
        name: (values[:, index] - np.delete(values, index, 1).max(axis=1)).max() > 60
        for index, name in enumerate(("red", "green", "blue"))
    }
    return {name for name, does in stands_out.items() if does}


def test_labels_are_on_the_left_and_detections_on_the_right():
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
    assert drawn.shape == (2, 294, 520, 3)
    picture, top = slice(22, 238), 130  # 216 x 260 pixels in the middle of a square of 260
    for left in (65, 325):
        edge = drawn[0, top + 30 : 236, left]
        assert (edge == edge[0]).all() and len({*edge[0].tolist()}) > 1  # the color of the class
        assert (drawn[0, picture.start : 120, left] == 128).all()
    assert not find_colors(drawn[0, :120])  # a detection with a score of 0.1 is not shown
    assert (drawn[1, picture, :520] == 128).all()


def test_the_text_of_a_class_is_green_where_it_is_right_and_red_where_not():
    logits = tf.constant([[0.0, 1.0], [1.0, 0.0]])
    drawn = draw_classes(GREY, tf.constant([1, 1]), logits, ["cat", "dog"])
    assert drawn.shape == (2, 294, 260, 3)
    assert [find_colors(each[TEXT]) for each in drawn] == [{"green"}, {"red"}]
