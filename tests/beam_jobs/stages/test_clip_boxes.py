"""The stage clip_boxes."""

from __future__ import annotations

import numpy as np
import pytest

from beam_jobs.stages.clip_boxes import ClipBoxes, check, clip_boxes
from beam_jobs.stages.stage import Box, Example


def clip(box: tuple[float, float, float, float], **parameters) -> list[tuple[float, ...]]:
    """What becomes of a box in an image of 20x30 pixels."""
    example = Example(
        "a", "", b"the file", np.zeros((20, 30, 3), np.uint8), boxes=(Box(*box, "cell"),)
    )
    after = clip_boxes(example, ClipBoxes(**parameters))
    assert after.is_original
    return [(box.ymin, box.xmin, box.ymax, box.xmax) for box in after.boxes]


@pytest.mark.parametrize(
    "box, wanted",
    [
        ((1, 2, 19.5, 30), [(1, 2, 19.5, 30)]),
        ((-5, -5, 25, 35), [(0, 0, 20, 30)]),
        ((10, 20, 40, 40), [(10, 20, 20, 30)]),
        ((20, 0, 25, 5), []),
        ((5, -9, 9, -1), []),
        ((9, 9, 5, 12), []),
        ((float("nan"), 0, 5, 5), []),
    ],
)
def test_a_box_is_cut_at_the_edge_and_goes_if_nothing_is_inside(box, wanted):
    assert clip(box) == wanted


@pytest.mark.parametrize(
    "parameters, is_kept",
    [
        ({"min_visible": 0.5}, True),
        ({"min_visible": 0.51}, False),
        ({"min_side": 5.0}, True),
        ({"min_side": 5.1}, False),
        ({"min_area": 50.0}, True),
        ({"min_area": 50.1}, False),
    ],
)
def test_a_box_of_which_too_little_is_left_goes(parameters, is_kept):
    assert bool(clip((0, -5, 10, 5), **parameters)) is is_kept


def test_it_is_for_detection():
    assert "is for detection" in check(ClipBoxes(), "classification", [])
    assert check(ClipBoxes(), "detection", []) is None
