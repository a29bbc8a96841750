"""The test split and its slices as groups of examples.

A group has the figures of both models and the draws for their intervals. All of it is computed from
the answers alone. The gate judges groups, and the report shows them. Pure functions.

Legend: N examples, B draws.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline_ops.artifacts.results import ModelEvaluation, SliceFigures
from pipeline_ops.config.evaluate import Bootstrap
from pipeline_ops.evaluation.bootstrap import BootstrapSamples, ModelAnswers, draw, interval
from pipeline_ops.evaluation.metrics import ModelAnswer, evaluate_answers, wilson_interval_95

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
    draws: BootstrapSamples | None
    """None for a detector."""
    champion_draws: BootstrapSamples | None

    @property
    def name(self) -> str:
        return f"{self.slice}={self.value}" if self.slice else ""

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Returns 95 % intervals of the challenger's metrics.

        Those of the accuracies are Wilson's, because a bootstrap is less accurate near 1.
        """
        found = {name: interval(values) for name, values in self.draws.metrics.items()}
        counts = {
            name: round(self.challenger.metrics[name] * self.num_examples) for name in _PROPORTIONS
        }
        return found | {
            name: wilson_interval_95(count, self.num_examples) for name, count in counts.items()
        }

    def differences(self) -> dict[str, tuple[float, float]]:
        """Returns 95 % intervals of challenger minus champion."""
        if self.champion_draws is None:
            return {}
        return {
            name: interval(values - self.champion_draws.metrics[name])
            for name, values in self.draws.metrics.items()
        }

    def as_slice(self) -> SliceFigures:
        return SliceFigures(
            name=self.slice,
            value=self.value,
            num_examples=self.num_examples,
            challenger=self.challenger.metrics,
            champion=self.champion.metrics if self.champion else None,
            intervals=self.intervals(),
            differences=self.differences(),
        )


def whole_group(
    labels: np.ndarray,
    answers: Sequence[ModelAnswer],
    evaluations: Sequence[ModelEvaluation],
    top_k: int,
    bootstrap: Bootstrap,
) -> Group:
    """Returns the group of all examples.

    `answers` and `evaluations` are those of the challenger and, if there is one, of the champion.
    """
    num_classes = len(evaluations[0].classes)
    draws = draw(
        labels,
        [ModelAnswers(answer.classes, answer.ranks < top_k) for answer in answers],
        num_classes,
        bootstrap.samples,
        bootstrap.seed,
    )
    return Group("", "", len(labels), *_pair(evaluations), *_pair(draws))


def slice_groups(
    labels: np.ndarray,
    answers: Sequence[ModelAnswer],
    slices: Mapping[str, np.ndarray],
    class_names: Sequence[str],
    top_k: int,
    bootstrap: Bootstrap,
) -> list[Group]:
    """Returns a group for each value of each slice, in the order of the config and of the values.

    Args:
      slices: the value (text, [N]) of every example, by the slice's name.
    """
    found = []
    for name, values in slices.items():
        for value in _in_order(set(values.tolist())):
            index = np.flatnonzero(values == value)
            models = [
                ModelAnswers(answer.classes[index], answer.ranks[index] < top_k)
                for answer in answers
            ]
            evaluations = [_evaluate(labels[index], model, class_names) for model in models]
            draws = draw(labels[index], models, len(class_names), bootstrap.samples, bootstrap.seed)
            draws = [
                dataclasses.replace(each, classes={}) for each in draws
            ]  # no rule has both a class and a slice, and they are large
            found.append(Group(name, value, len(index), *_pair(evaluations), *_pair(draws)))
    return found


def _evaluate(
    labels: np.ndarray, model: ModelAnswers, class_names: Sequence[str]
) -> ModelEvaluation:
    figures = evaluate_answers(labels, model.classes, class_names)
    return figures.model_copy(
        update={"metrics": {**figures.metrics, "top_k_accuracy": float(model.is_in_top_k.mean())}}
    )


def _pair(models: Sequence) -> tuple:
    return models[0], models[1] if len(models) > 1 else None


def _in_order(values: set[str]) -> list[str]:
    """Sorts ranges by their lower end and everything else by name.

    The text of a range begins with its lower end (`slices.py`).
    """
    return sorted(values, key=lambda value: (_leading_number(value), value))


def _leading_number(value: str) -> float:
    words = value.split(" ")
    try:
        return float("-inf") if words[0] == "below" else float(words[0])
    except ValueError:
        return float("inf")
