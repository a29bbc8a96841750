"""`serve` of a user's stage, tried on images before any work."""

from __future__ import annotations

import numpy as np
import pytest
import served_stages

from beam_jobs.checks import _Trials
from beam_jobs.stages import find_stage
from beam_jobs.stages.stage import Box, Example
from pipeline_ops.config.preprocess import StageConfig
from pipeline_ops.errors import ConfigError
from pipeline_ops.served.trial import try_stage

IMAGE = np.random.default_rng(3).integers(0, 256, (16, 12, 1), np.uint8)
BOXES = Box(5, 2, 9, 6, "cat"), Box(8, 1, 12, 11, "dog")


def make_trial(folder, name: str, boxes=None, **values):
    from beam_jobs.stages import bind_stages

    config = StageConfig(name=f"served_stages:{name}", parameters=values)
    [stage] = bind_stages([config])
    example = Example("a.png", "", b"", boxes=boxes, split="test").replace(pixels=IMAGE)
    trials = _Trials([config], folder)
    trials.keep(stage, example, stage(example))
    [trial] = trials.kept
    return trial


@pytest.mark.parametrize(
    ("name", "boxes"),
    [("INVERT_RIGHT", None), ("BRIGHTEN", None), ("CORNER", None), ("CORNER", BOXES)],
)
def test_a_form_that_does_what_its_stage_does_is_accepted(tmp_path, name, boxes):
    try_stage(make_trial(tmp_path, name, boxes))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("INVERT_WRONG", r"makes other pixels of a\.png than the stage: they differ by \d+"),
        ("INVERT_SOFT", r"other pixels of a\.png .*: they differ by [23]\.\d\d of 255 in the mean"),
        ("INVERT_IN_PYTHON", "calls Python while it runs"),
        ("INVERT_SOME", r"failed on a\.png: "),
        ("INVERT_ROW", r"must return an image \[H, W, 1\], got the shape \(None, 1\)"),
        ("INVERT_MISSPELT", rf"failed in {served_stages.__file__}:\d+: AttributeError: .*minimun"),
        ("INVERT_SHORT", r"makes \(15, 12, 1\) of a\.png, the stage makes \(16, 12, 1\)"),
    ],
)
def test_a_form_that_does_something_else_is_refused(tmp_path, name, reason):
    trial = make_trial(tmp_path, name)
    with pytest.raises(ConfigError, match=reason):
        try_stage(trial)


@pytest.mark.parametrize(
    ("top", "reason"),
    [(0.5, r"a window that maps boxes of a\.png to other places"), (0.0, "and its window")],
)
def test_a_window_that_moves_boxes_elsewhere_is_refused(tmp_path, top, reason):
    assert find_stage("served_stages:CORNER").serve
    trial = make_trial(tmp_path, "CORNER", BOXES, top=top)
    with pytest.raises(ConfigError, match=reason):
        try_stage(trial)
    without_boxes = make_trial(tmp_path, "CORNER", None, top=top)
    try_stage(without_boxes)
