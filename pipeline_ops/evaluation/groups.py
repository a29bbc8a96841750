"""The test split and its slices: groups of examples with the figures of both models.

A value of a slice comes from the example's key, from the size of its file, or from a feature that
is stored with it. The config defines the slices (`evaluate.slices`). The gate judges groups, and
the report shows them. Pure functions.

Legend: N examples, C classes, B draws.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline_ops.artifacts.results import ModelEvaluation, SliceFigures
from pipeline_ops.config.evaluate import Slice
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.metrics import (
    Interval,
    ModelPredictions,
    compute_interval_95,
    compute_wilson_interval_95,
    draw_samples,
    evaluate_counts,
)
from pipeline_ops.input.saved_model_client import EncodedBatch

MISSING_VALUE = "(none)"
"""The value of an example that lacks the feature, or whose key has no folder."""
_BUILT_IN = ("folder", "image_bytes")
_MAX_VALUES = 100
_PROPORTIONS = ("accuracy", "top_k_accuracy")


@dataclasses.dataclass(frozen=True)
class Group:
    """A group of test examples.

    `slice` and `value` are "" for the whole split. `champion` is None if it is not compared.
    """

    num_examples: int
    challenger: ModelEvaluation
    champion: ModelEvaluation | None = None
    slice: str = ""
    value: str = ""
    differences: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Draws of challenger minus champion, by metric: [B], or [B, C] for the metric of a class.

    Empty without a champion. It has only metrics that are made of counts, so none of a detector.
    """
    baseline: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The metrics of a model that has not looked at the images. Empty for a slice."""

    @property
    def name(self) -> str:
        return f"{self.slice}={self.value}" if self.slice else ""

    def compute_difference_intervals(self) -> dict[str, Interval]:
        """Returns 95 % intervals of challenger minus champion, for metrics of the whole group."""
        return {
            name: compute_interval_95(draws)
            for name, draws in self.differences.items()
            if draws.ndim == 1
        }

    def to_slice_figures(self) -> SliceFigures:
        return SliceFigures(
            name=self.slice,
            value=self.value,
            num_examples=self.num_examples,
            challenger=self.challenger.metrics,
            champion=self.champion.metrics if self.champion else None,
            intervals=self.challenger.intervals,
            differences=self.compute_difference_intervals(),
        )


def build_group(
    labels: np.ndarray,
    predictions: Sequence[ModelPredictions],
    evaluations: Sequence[ModelEvaluation],
    slice: str = "",
    value: str = "",
    baseline: Mapping[str, float] | None = None,
) -> Group:
    """Returns a group with 95 % intervals of the challenger's metrics that are made of counts.

    The intervals of the accuracies are Wilson's, because a bootstrap is less accurate near 1.

    Args:
      predictions: the answers of the challenger and, if there is one, of the champion.
      evaluations: their figures.
    """
    challenger, *champions = evaluations
    draws, *others = draw_samples(labels, predictions, len(challenger.classes))
    intervals = {
        name: compute_wilson_interval_95(round(challenger.metrics[name] * len(labels)), len(labels))
        if name in _PROPORTIONS
        else compute_interval_95(values)
        for name, values in draws.items()
        if values.ndim == 1
    }
    return Group(
        len(labels),
        challenger.model_copy(update={"intervals": intervals}),
        champions[0] if champions else None,
        slice,
        value,
        {
            name: values - others[0][name]
            for name, values in (draws.items() if others else ())
            # No rule has both a class and a slice, and the draws of the classes are large.
            if not slice or values.ndim == 1
        },
        baseline or {},
    )


def build_slice_groups(
    labels: np.ndarray,
    predictions: Sequence[ModelPredictions],
    slices: Mapping[str, np.ndarray],
    class_names: Sequence[str],
) -> list[Group]:
    """Returns a group for each value of each slice, in the order of the config and of the values.

    Args:
      slices: the value (text, [N]) of every example, by the slice's name.
    """
    found = []
    for name, values in slices.items():
        # Ranges are sorted by their lower end, which begins their text, other values by name.
        for value in sorted(set(values.tolist()), key=lambda each: (_parse_lower_end(each), each)):
            indexes = np.flatnonzero(values == value)
            models = [each.select(indexes) for each in predictions]
            evaluations = [evaluate_counts(labels[indexes], model, class_names) for model in models]
            found.append(build_group(labels[indexes], models, evaluations, name, value))
    return found


def _parse_lower_end(value: str) -> float:
    word = value.split(" ")[0]
    try:
        return float("-inf") if word == "below" else float(word)
    except ValueError:
        return float("inf")


def list_required_features(slices: Sequence[Slice]) -> list[str]:
    """Returns the features that have to be read with the examples."""
    return sorted({part.by for part in slices if part.by not in _BUILT_IN})


def compute_slice_values(batch: EncodedBatch, slices: Sequence[Slice]) -> dict[str, list[str]]:
    """Returns the value of every example of a batch, as text, for each slice."""
    return {
        part.title: [_format_value(value, part) for value in _read_raw_values(batch, part)]
        for part in slices
    }


def join_slice_values(
    values: Mapping[str, list[str]], slices: Sequence[Slice]
) -> dict[str, np.ndarray]:
    """Returns the values of all examples as text [N], by slice.

    Raises:
      DataError: no example has the feature, or it has too many values for a table.
    """
    for part in slices:
        distinct = set(values[part.title])
        if part.by not in _BUILT_IN and distinct == {MISSING_VALUE}:
            raise DataError(
                f"evaluate.slices: no test example has the feature {part.by!r}. "
                "Correct `by`, or store the feature with the examples."
            )
        if len(distinct) > _MAX_VALUES:
            raise DataError(
                f"evaluate.slices: {part.title} has {len(distinct)} values, "
                f"at most {_MAX_VALUES} are allowed. Set edges or folder_depth."
            )
    return {name: np.array(found) for name, found in values.items()}


def _read_raw_values(batch: EncodedBatch, part: Slice) -> Sequence[str | bytes | float | None]:
    if part.by == "folder":
        folders = (key.split("/")[:-1][: part.folder_depth] for key in batch.keys)
        return ["/".join(folder) or None for folder in folders]
    if part.by == "image_bytes":
        return [len(image) for image in batch.images]
    return batch.features[part.by]


def _format_value(value: str | bytes | float | None, part: Slice) -> str:
    if value is None:
        return MISSING_VALUE
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    edges = part.edges
    if not edges:
        return value if isinstance(value, str) else f"{value:g}"
    if isinstance(value, str):
        raise DataError(
            f"evaluate.slices: {part.title} has edges, but {value!r} is not a number. "
            "Remove the edges."
        )
    index = bisect_right(edges, value)
    if index == 0:
        return f"below {edges[0]:g}"
    end = "and more" if index == len(edges) else f"to {edges[index]:g}"
    return f"{edges[index - 1]:g} {end}"
