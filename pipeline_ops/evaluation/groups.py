"""The test split and its slices as groups of examples.

A group has the figures of both models and the draws for their intervals. All of it is computed from
the answers alone. The gate judges groups, and the report shows them. Pure functions.

Legend: N examples, B draws.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from pipeline_ops.artifacts.results import ModelEvaluation, SliceFigures
from pipeline_ops.evaluation.bootstrap import (
    BootstrapSamples,
    TopKPredictions,
    compute_interval,
    draw_samples,
)
from pipeline_ops.evaluation.metrics import (
    ModelPredictions,
    compute_wilson_interval_95,
    evaluate_predictions,
)

_PROPORTIONS = ("accuracy", "top_k_accuracy")


@dataclasses.dataclass(frozen=True)
class Group:
    """A group of test examples.

    `slice` and `value` are "" for the whole split. The champion's parts are None if it is not
    compared.
    """

    slice: str
    value: str
    num_examples: int
    challenger: ModelEvaluation
    champion: ModelEvaluation | None
    draws: BootstrapSamples | None = None
    """None for a detector."""
    champion_draws: BootstrapSamples | None = None
    baseline: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The metrics of a model that has not looked at the images. Empty for a slice."""

    @property
    def name(self) -> str:
        return f"{self.slice}={self.value}" if self.slice else ""

    def compute_differences(self, metric: str) -> np.ndarray | None:
        """Returns draws of challenger minus champion: [B], or [B, C] for the metric of a class.

        Returns None if there is no champion, or if the metric is not made of counts.
        """
        if self.draws is None or self.champion_draws is None:
            return None
        found, other = (
            draws.metrics | draws.classes for draws in (self.draws, self.champion_draws)
        )
        return found[metric] - other[metric] if metric in found else None

    def compute_intervals(self) -> dict[str, tuple[float, float]]:
        """Returns 95 % intervals of the challenger's metrics that have draws.

        Those of the accuracies are Wilson's, because a bootstrap is less accurate near 1.
        """
        return {
            name: compute_wilson_interval_95(
                round(self.challenger.metrics[name] * self.num_examples), self.num_examples
            )
            if name in _PROPORTIONS
            else compute_interval(values)
            for name, values in (self.draws.metrics if self.draws else {}).items()
        }

    def compute_difference_intervals(self) -> dict[str, tuple[float, float]]:
        """Returns 95 % intervals of challenger minus champion."""
        return {
            name: compute_interval(differences)
            for name in (self.draws.metrics if self.draws else ())
            if (differences := self.compute_differences(name)) is not None
        }

    def to_slice_figures(self) -> SliceFigures:
        return SliceFigures(
            name=self.slice,
            value=self.value,
            num_examples=self.num_examples,
            challenger=self.challenger.metrics,
            champion=self.champion.metrics if self.champion else None,
            intervals=self.compute_intervals(),
            differences=self.compute_difference_intervals(),
        )


def build_whole_group(
    labels: np.ndarray,
    predictions: Sequence[ModelPredictions],
    evaluations: Sequence[ModelEvaluation],
    baseline: Mapping[str, float],
    top_k: int,
) -> Group:
    """Returns the group of all examples.

    `predictions` and `evaluations` are those of the challenger and, if there is one, of the
    champion.
    """
    models = [TopKPredictions(each.classes, each.ranks < top_k) for each in predictions]
    num_classes = len(evaluations[0].classes)
    draws = draw_samples(labels, models, num_classes)
    return Group("", "", len(labels), *to_pair(evaluations), *to_pair(draws), baseline)


def build_slice_groups(
    labels: np.ndarray,
    predictions: Sequence[ModelPredictions],
    slices: Mapping[str, np.ndarray],
    class_names: Sequence[str],
    top_k: int,
) -> list[Group]:
    """Returns a group for each value of each slice, in the order of the config and of the values.

    Args:
      slices: the value (text, [N]) of every example, by the slice's name.
    """
    found = []
    for name, values in slices.items():
        for value in _sort_values(set(values.tolist())):
            index = np.flatnonzero(values == value)
            models = [
                TopKPredictions(each.classes[index], each.ranks[index] < top_k)
                for each in predictions
            ]
            evaluations = [
                evaluate_predictions(labels[index], model, class_names) for model in models
            ]
            draws = draw_samples(labels[index], models, len(class_names))
            # No rule has both a class and a slice, and the draws of the classes are large.
            draws = [dataclasses.replace(each, classes={}) for each in draws]
            found.append(Group(name, value, len(index), *to_pair(evaluations), *to_pair(draws)))
    return found


ModelT = TypeVar("ModelT")


def to_pair(models: Sequence[ModelT]) -> tuple[ModelT, ModelT | None]:
    """Returns the part of the challenger and, if there is one, that of the champion."""
    return models[0], models[1] if len(models) > 1 else None


def _sort_values(values: set[str]) -> list[str]:
    """Sorts ranges by their lower end, which begins their text (`slices.py`), others by name."""
    return sorted(values, key=lambda value: (_parse_leading_number(value), value))


def _parse_leading_number(value: str) -> float:
    words = value.split(" ")
    try:
        return float("-inf") if words[0] == "below" else float(words[0])
    except ValueError:
        return float("inf")
