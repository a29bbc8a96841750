"""Measures for the gate other than a model's answers: latency, model size, data drift.

A latency depends on the clock, so it is part of an evaluation only if a rule needs it. All other
figures are the same every time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline_ops.config.evaluate import Evaluate
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.inputs import Inputs
from pipeline_ops.input.saved_model_client import SavedModelClient, read_encoded_batches
from pipeline_ops.storage.local_files import read_json

_NUM_WARMUP_CALLS, _NUM_TIMED_CALLS, _MAX_TIMED_IMAGES = 5, 50, 50


def measure_models(
    config: Evaluate, inputs: Inputs, clients: Sequence[SavedModelClient]
) -> list[dict[str, float]]:
    """Returns the measures of each model as it is served.

    The models take turns in a measurement, so that load affects all of them alike.
    """
    measures = [{"model_bytes": float(model.model_bytes)} for model in inputs.models]
    if not config.needs_latency:
        return measures
    dataset = inputs.dataset
    images = next(
        read_encoded_batches(dataset.test_shards, _MAX_TIMED_IMAGES, dataset.removed_test_positions)
    ).images
    times: list[list[float]] = [[] for _ in clients]
    for call in range(_NUM_WARMUP_CALLS + _NUM_TIMED_CALLS):
        for client, durations in zip(clients, times, strict=True):
            begin = time.perf_counter()
            index = call % len(images)
            client.call_signature("serving_default", image_bytes=images[index : index + 1])
            durations.append(1e3 * (time.perf_counter() - begin))
    for found, durations in zip(measures, times, strict=True):
        found["latency_milliseconds"] = statistics.median(durations[_NUM_WARMUP_CALLS:])
    return measures


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
            f"cannot read {statistics_file} ({error}). Remove the data set that it belongs to, "
            "then start a new run."
        ) from None


def find_largest_drift(drift: Sequence[dict[str, Any]] | None) -> float | None:
    """Returns the largest Jensen-Shannon distance. None without a reference."""
    if drift is None:
        return None
    return max((distance["jensen_shannon"] for distance in drift), default=0.0)
