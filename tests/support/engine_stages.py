"""Stages that the workers of an engine import: a slow one, and one with a bug."""

from __future__ import annotations

import os
import time

from beam_jobs.stages.stage import Example, parameters

SECONDS_VARIABLE = "TRAINYARD_TEST_SECONDS"
"""In the environment of an engine's workers: the time that each image takes there."""


@parameters
class Slow:
    pass


def slow(example: Example, parameters: Slow) -> Example:
    time.sleep(float(os.environ.get(SECONDS_VARIABLE, "0")))
    return example


@parameters
class Broken:
    key: str
    """The key of the image at which it fails."""


def broken(example: Example, parameters: Broken) -> Example:
    if example.key == parameters.key:
        raise KeyError(parameters.key)
    return example
