"""Compares the requests to the model in service with the training split of the data set.

The job's request pins the counts of the requests, so the same evaluation gives the same bytes.
Features are those of data set statistics. The distance is the same as in `preprocess.drift`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from pipeline_ops.config.evaluate import Evaluate
from pipeline_ops.contract.features import (
    LABELS,
    Histogram,
    align_labels,
    compare_histograms,
)
from pipeline_ops.contract.results import ServingFigures, SkewDistance
from pipeline_ops.contract.serving_statistics import ServingStatistics
from pipeline_ops.storage.local_files import read_json
from pipeline_ops.storage.read_errors import make_read_error

MIN_COMPARED = 100
"""A feature of fewer images is not compared, because chance alone gives a distance of about 0.2."""


class SplitCounts(BaseModel):
    """The part of the statistics of a split that requests are compared with."""

    features: dict[str, Histogram] = {}
    labels: dict[str, int] = {}


class _DatasetCounts(BaseModel):
    splits: dict[str, SplitCounts]


@dataclasses.dataclass(frozen=True)
class ServingComparison:
    """Requests beside the training split, as the report shows them."""

    figures: ServingFigures
    requests: ServingStatistics
    training: SplitCounts


def compare_with_requests(
    config: Evaluate, requests: ServingStatistics | None, statistics_file: Path
) -> ServingComparison | None:
    """Compares requests with the training split. Returns None if the config has no comparison.

    `statistics_file` belongs to the data set. Raises DataError if it cannot be read.
    """
    comparison = config.serving_comparison
    if comparison is None:
        return None
    requests = requests or ServingStatistics()
    training = _read_training_split(statistics_file)
    limits = [rule.at_most for rule in config.gate if rule.metric == "serving_skew"]
    limit = min((limit for limit in limits if limit is not None), default=1.0)
    distances = []
    if training is not None:
        pairs: dict[str, tuple[Sequence[float], Sequence[float]]] = {
            name: (training.features[name].counts, found.counts)
            for name, found in requests.features.items()
            if name in training.features and found.count >= MIN_COMPARED
        }
        if sum(requests.labels.values()) >= MIN_COMPARED:
            pairs[LABELS] = align_labels(training.labels, requests.labels)
        distances = [
            SkewDistance(feature=name, jensen_shannon=js, l_infinity=linf, is_above=js > limit)
            for name, js, linf in compare_histograms(pairs)
        ]
    figures = ServingFigures(
        num_images=requests.num_images,
        start=requests.start,
        end=requests.end,
        versions=requests.versions,
        distances=distances,
        problem="" if distances else _explain_missing(requests, training, comparison.days),
    )
    return ServingComparison(figures, requests, training or SplitCounts())


def _explain_missing(requests: ServingStatistics, training: SplitCounts | None, days: int) -> str:
    if training is None:
        return "the data set has no statistics"
    period = "today" if days == 1 else f"in the last {days} days"
    if not requests.num_images:
        damaged = f", and {requests.num_damaged} lines are damaged" * bool(requests.num_damaged)
        return f"no requests to the model in service were counted {period}{damaged}"
    return (
        f"{requests.num_images} images were requested {period}, and a comparison needs "
        f"{MIN_COMPARED} that were measured"
    )


def _read_training_split(file: Path) -> SplitCounts | None:
    try:
        content: Any = read_json(file)
        return _DatasetCounts.model_validate(content).splits["train"] if content else None
    except (OSError, ValueError, KeyError, ValidationError) as error:
        remedy = ". Remove the data set that it belongs to, then start a new run."
        raise make_read_error(f"cannot read {file}", error, remedy) from None
