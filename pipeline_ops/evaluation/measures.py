"""Measures for the gate besides a model's answers: latency, model size, data drift.

A latency is measured by the clock, so it is part of an evaluation only if a rule asks for it.
Everything else is the same every time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline_ops.errors import DataError
from pipeline_ops.input.saved_model_client import ServedModel
from pipeline_ops.storage.atomic import read_json

_WARM_UPS, _CALLS = 5, 50


def latencies_milliseconds(models: Sequence[ServedModel], images: np.ndarray) -> list[float]:
    """Returns the median time of each model for one image, from the bytes of its file.

    The models take turns, so that load affects all of them alike.
    """
    times: list[list[float]] = [[] for _ in models]
    for call in range(_WARM_UPS + _CALLS):
        for model, taken in zip(models, times, strict=True):
            begin = time.perf_counter()
            place = call % len(images)
            model.ask("serving_default", image_bytes=images[place : place + 1])
            taken.append(1e3 * (time.perf_counter() - begin))
    return [statistics.median(taken[_WARM_UPS:]) for taken in times]


def read_drift(statistics_file: Path) -> list[dict[str, Any]] | None:
    """Reads the distances of every feature and of the classes to the reference, the largest first.

    Returns None if there was no reference.
    """
    try:
        found = read_json(statistics_file)
        comparison = found["comparison"] if found else None
        return None if comparison is None else list(comparison["drift"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{statistics_file}: can't be read ({error}); "
            "remove the data set that it is in, and start a new run"
        ) from None


def largest_drift(drift: Sequence[dict[str, Any]] | None) -> float | None:
    """Returns the largest Jensen-Shannon distance."""
    return (
        None
        if drift is None
        else max((distance["jensen_shannon"] for distance in drift), default=0.0)
    )
