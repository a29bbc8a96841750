"""Scenes of real digits with known truth."""

from __future__ import annotations

import numpy as np

from pipeline_ops.examples.digit_scene import _select_digits, draw_scene


def test_a_scene_depends_on_its_split_and_number_alone():
    (image, boxes), (again, same) = draw_scene("train", 7), draw_scene("train", 7)
    assert (image == again).all() and boxes == same
    assert not (image == draw_scene("train", 8)[0]).all()
    assert not (image == draw_scene("test", 7)[0]).all()


def test_every_box_holds_a_digit_of_its_size_and_hardly_touches_another():
    for number in range(40):
        image, boxes = draw_scene("validation", number)
        assert image.shape == (128, 128) and image.dtype == np.uint8 and 1 <= len(boxes) <= 6
        for (ymin, xmin, ymax, xmax), digit in boxes:
            assert 0 <= ymin < ymax <= 128 and 0 <= xmin < xmax <= 128 and 0 <= digit <= 9
            assert 12 <= ymax - ymin <= 40
            assert image[ymin:ymax, xmin:xmax].max() > 120


def test_no_split_shows_a_digit_of_another():
    sets = {
        split: {image.tobytes() + bytes([label]) for image, label in _select_digits(split)}
        for split in ("train", "validation", "test")
    }
    assert [len(_select_digits(split)) for split in sets] == [1438, 180, 179]
    assert not sets["train"] & sets["test"] and not sets["validation"] & sets["test"]
