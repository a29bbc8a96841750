"""Metrics of a classifier on all test examples and on slices of them, from its answers.

scikit-learn computes areas and curves, SciPy Wilson's interval. Functions import them when they
need them, because the import takes 0.7 s and `trainyard compare` needs neither. Metrics that are
made of counts have one formula for values and for bootstrap draws.

Legend: N examples, C classes, K cells, B draws.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline_ops.config.evaluate import Mode, find_mode
from pipeline_ops.contract.results import (
    CalibrationBin,
    ClassFigures,
    ModelEvaluation,
    NotFinite,
    SliceFigures,
)
from pipeline_ops.evaluation.slices import iterate_values
from pipeline_ops.precision_recall import RECALL_THRESHOLDS, compute_rates

NUM_SAMPLES, SEED = 1000, 1
"""The draws of the test examples for every interval, and their seed."""
Curves = Mapping[str, np.ndarray]
"""Precision-recall curves by class: the precision at each of RECALL_THRESHOLDS, float [101]."""
Interval = tuple[float, float]
_NUM_CALIBRATION_BINS = 15
_PROPORTIONS = ("accuracy", "top_k_accuracy")
_MAX_BLOCK_VALUES = 1 << 22
"""The maximum of values in one block of draws: 32 MB."""


@dataclasses.dataclass(frozen=True)
class ModelPredictions:
    """The answers of one model to N examples.

    `classes`: int64 [N]. `is_in_top_k`: bool [N], whether the label is among the k most probable
    classes. `confidences`: float [N], the probability of the answer. `scores`: float [C, N], the
    probabilities, by class because each class is evaluated by itself. `own`: float [N] for each
    metric of the user's own, by name. `not_finite`: the examples whose probabilities are not
    finite. They have the probabilities 0, and a wrong class.
    """

    classes: np.ndarray
    is_in_top_k: np.ndarray
    confidences: np.ndarray
    scores: np.ndarray
    own: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    not_finite: NotFinite = NotFinite()

    def select(self, indexes: np.ndarray) -> ModelPredictions:
        """Returns the answers to some of the examples, without their scores."""
        return ModelPredictions(
            self.classes[indexes],
            self.is_in_top_k[indexes],
            self.confidences[indexes],
            np.empty((0, len(indexes))),
            {name: values[indexes] for name, values in self.own.items()},
        )


def get_direction(metric: str, own: Mapping[str, Mode]) -> int:
    """Returns 1 if a higher metric is better, -1 if a lower one is, and 0 if that is unknown.

    `own` has the better directions of the author's own metrics, by name.
    """
    mode = find_mode(metric, own)
    return 0 if mode is None else 1 if mode == "max" else -1


def to_recall_points(curves: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Returns the points of the mean of precision-recall curves, which are float [101]."""
    mean = np.mean(list(curves.values()), axis=0)
    return list(zip(RECALL_THRESHOLDS.tolist(), mean.tolist(), strict=True))


def find_in_top_k(probabilities: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """Returns whether each label is among the k most probable classes: bool [N].

    Among equal probabilities, the class with the higher index comes first, as in scikit-learn's
    `top_k_accuracy_score`, which has no answer for a single example. `probabilities` are finite,
    float [N, C].
    """
    label_probability = probabilities[np.arange(len(labels)), labels][:, None]
    comes_later = np.arange(probabilities.shape[1]) > labels[:, None]
    is_before = np.where(
        comes_later, probabilities >= label_probability, probabilities > label_probability
    )
    is_found: np.ndarray = np.count_nonzero(is_before, axis=1) < k
    return is_found


def evaluate_model(
    labels: np.ndarray, predictions: ModelPredictions, class_names: Sequence[str]
) -> tuple[ModelEvaluation, Curves]:
    """Returns all figures of one model except its intervals, and its precision-recall curves.

    Classes without examples are left out of means over classes and of the worst class, because
    there is nothing to find.
    """
    from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score

    evaluation = evaluate_counts(labels, predictions, class_names)
    classes, curves = [], {}
    for index, figures in enumerate(evaluation.classes):
        roc_auc = average_precision = None
        is_positive, scores = labels == index, predictions.scores[index]
        if 0 < figures.support < len(labels):
            roc_auc = float(roc_auc_score(is_positive, scores))
        if figures.support:
            average_precision = float(average_precision_score(is_positive, scores))
            precision, recall, _ = precision_recall_curve(is_positive, scores)
            # Recall falls. The last point belongs to no threshold.
            best = np.maximum.accumulate(precision[:-1])
            places = np.searchsorted(recall[-2::-1], RECALL_THRESHOLDS - 1e-12)
            curves[figures.name] = best[::-1][places]
        areas = {"roc_auc": roc_auc, "average_precision": average_precision}
        classes.append(figures.model_copy(update=areas))
    bins = compute_calibration_bins(predictions.confidences, predictions.classes == labels)
    metrics = dict(evaluation.metrics)
    for name in ("roc_auc", "average_precision"):
        known = [value for each in classes if (value := getattr(each, name)) is not None]
        if known:
            metrics[f"macro_{name}"] = float(np.mean(known))
    metrics["calibration_error"] = compute_calibration_error(bins)
    changes = {"metrics": metrics, "classes": classes, "calibration": bins}
    return evaluation.model_copy(update=changes), curves


def evaluate_counts(
    labels: np.ndarray, predictions: ModelPredictions, class_names: Sequence[str]
) -> ModelEvaluation:
    """Returns the figures that depend on right and wrong answers alone."""
    size, once = len(class_names), np.ones((1, len(labels)))
    # Row i, column j: examples of class i that were taken for class j.
    confusion = np.bincount(labels * size + predictions.classes, minlength=size**2)
    confusion = confusion.reshape(size, size)
    metrics = _compute_metrics(labels, predictions.classes, predictions.is_in_top_k, once, size)
    return ModelEvaluation(
        metrics={name: float(value[0]) for name, value in metrics.items() if value.ndim == 1}
        | {name: float(values.mean()) for name, values in predictions.own.items()},
        classes=compute_class_figures(confusion, class_names),
        confusion=confusion.tolist(),
    )


def compute_class_figures(confusion: np.ndarray, class_names: Sequence[str]) -> list[ClassFigures]:
    """Returns precision, recall and F1 of each class. `confusion` is int [C or more, C or more]."""
    size = len(class_names)
    support = confusion.sum(axis=1)[:size]
    rates = compute_rates(confusion.diagonal()[:size], confusion.sum(axis=0)[:size], support)
    return [
        ClassFigures(
            name=name,
            support=int(support[index]),
            **{rate: float(values[index]) for rate, values in rates.items()},
        )
        for index, name in enumerate(class_names)
    ]


def draw_samples(
    labels: np.ndarray,
    models: Sequence[ModelPredictions],
    num_classes: int,
    samples: int = NUM_SAMPLES,
    seed: int = SEED,
) -> list[dict[str, np.ndarray]]:
    """Returns draws of each model's metrics, by bootstrap over the test examples.

    A metric is float64 [B], precision, recall and f1 are float64 [B, C]. Each draw resamples the
    examples with replacement. All models see the same draws, so the draws of a difference are
    paired: examples that are hard for both models do not widen its interval. Examples with the same
    label and the same answers of all models form one cell, and a draw is a multinomial over the
    cells. This is equivalent to drawing examples and costs a thousandth of it. The same arguments
    give the same numbers.
    """
    answers = [column for model in models for column in (model.classes, model.is_in_top_k)]
    cells, counts = np.unique(np.stack([labels, *answers]), axis=1, return_counts=True)
    blocks: list[list[dict[str, np.ndarray]]] = [[] for _ in models]
    for weights in draw_weights(counts, samples, seed, len(counts)):
        for index, block in enumerate(blocks):
            classes, is_in_top_k = cells[1 + 2 * index : 3 + 2 * index]
            block.append(_compute_metrics(cells[0], classes, is_in_top_k, weights, num_classes))
    return [
        {name: np.concatenate([part[name] for part in block]) for name in block[0]}
        for block in blocks
    ]


def _draw_means(
    models: Sequence[Mapping[str, np.ndarray]], num_examples: int
) -> list[dict[str, np.ndarray]]:
    """Returns draws of the mean of each metric of each model, float64 [B] by name.

    All models see the same draws of the examples.
    """
    means: list[dict[str, list[np.ndarray]]] = [{name: [] for name in model} for model in models]
    blocks = draw_weights(np.ones(num_examples), NUM_SAMPLES, SEED, num_examples)
    for weights in blocks if any(models) else ():
        for model, found in zip(models, means, strict=True):
            for name, values in model.items():
                found[name].append(weights @ values / num_examples)
    return [{name: np.concatenate(parts) for name, parts in found.items()} for found in means]


def draw_weights(
    counts: np.ndarray, samples: int, seed: int, values_per_draw: int
) -> Iterator[np.ndarray]:
    """Yields blocks of draws: int64 [b, K]. The block size does not change the numbers."""
    generator, total = np.random.default_rng(seed), int(counts.sum())
    rows = max(1, _MAX_BLOCK_VALUES // values_per_draw)
    for start in range(0, samples, rows):
        yield generator.multinomial(total, counts / total, size=min(rows, samples - start))


def _compute_metrics(
    labels_K: np.ndarray,
    classes_K: np.ndarray,
    is_in_top_k_K: np.ndarray,
    weights_BK: np.ndarray,
    num_classes: int,
) -> dict[str, np.ndarray]:
    """Returns the metrics that are made of counts, with K cells of examples in B weightings."""
    right_BK, total_B = weights_BK * (labels_K == classes_K), weights_BK.sum(axis=1)
    support_BC = _sum_by_class(weights_BK, labels_K, num_classes)
    rates_BC = compute_rates(
        _sum_by_class(right_BK, labels_K, num_classes),
        _sum_by_class(weights_BK, classes_K, num_classes),
        support_BC,
    )
    present_BC = support_BC > 0
    means = {
        f"macro_{name}": (values * present_BC).sum(axis=1) / present_BC.sum(axis=1)
        for name, values in rates_BC.items()
    }
    return {
        "accuracy": right_BK.sum(axis=1) / total_B,
        **means,
        "worst_class_recall": np.where(present_BC, rates_BC["recall"], np.inf).min(axis=1),
        "top_k_accuracy": (weights_BK * is_in_top_k_K).sum(axis=1) / total_B,
        **rates_BC,
    }


def _sum_by_class(values_BK: np.ndarray, classes_K: np.ndarray, num_classes: int) -> np.ndarray:
    order = np.argsort(classes_K, kind="stable")
    found, starts = np.unique(classes_K[order], return_index=True)
    sums_BC = np.zeros((len(values_BK), num_classes))
    sums_BC[:, found] = np.add.reduceat(values_BK[:, order], starts, axis=1)
    return sums_BC


def compute_interval_95(draws: np.ndarray) -> Interval:
    """Returns the percentile interval, which holds the true value with 95 % confidence."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def compute_wilson_interval_95(num_correct: int, num_examples: int) -> Interval:
    """Returns Wilson's score interval (1927) for a proportion.

    It holds its 95 % near 0 and 1 as well, where accuracies are.
    """
    from scipy.stats import binomtest

    low, high = binomtest(num_correct, num_examples).proportion_ci(0.95, "wilson")
    return float(low), float(high)


def compare_answers(
    labels: np.ndarray, challenger: np.ndarray, champion: np.ndarray
) -> dict[str, int]:
    """Counts the examples on which both models, one or none is right. Answers are int64 [N]."""
    first, second = challenger == labels, champion == labels
    return {
        "both_right": int((first & second).sum()),
        "only_challenger_right": int((first & ~second).sum()),
        "only_champion_right": int((second & ~first).sum()),
        "both_wrong": int((~first & ~second).sum()),
    }


def compute_calibration_bins(
    confidences: np.ndarray, is_right: np.ndarray, num_bins: int = _NUM_CALIBRATION_BINS
) -> list[CalibrationBin]:
    """Returns equally wide bins from 0 to 1 over the probability of the answer, float [N].

    Empty bins are left out. scikit-learn's `calibration_curve` has the same bins without counts.
    """
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    index = np.searchsorted(edges[1:-1], confidences)
    counts = np.bincount(index, minlength=num_bins)
    sums = np.bincount(index, confidences, num_bins)
    right = np.bincount(index, is_right, num_bins)
    return [
        CalibrationBin(
            low=float(edges[i]),
            high=float(edges[i + 1]),
            count=int(counts[i]),
            confidence=float(sums[i] / counts[i]),
            accuracy=float(right[i] / counts[i]),
        )
        for i in np.flatnonzero(counts)
    ]


def compute_calibration_error(bins: Sequence[CalibrationBin]) -> float:
    """Returns the expected calibration error (Naeini 2015): the absolute difference between the
    accuracy and the confidence of a bin, averaged over bins by their number of examples.
    """
    errors = [abs(each.accuracy - each.confidence) for each in bins]
    return float(np.average(errors, weights=[each.count for each in bins]))


@dataclasses.dataclass(frozen=True)
class ExampleGroup:
    """The whole test split, or the examples of one value of a slice, with the figures on them.

    `slice` and `value` are "" for the whole split. `champion` is None if it is not compared.
    """

    num_examples: int
    challenger: ModelEvaluation
    champion: ModelEvaluation | None = None
    slice: str = ""
    value: str = ""
    differences: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Draws of challenger minus champion, by metric: [B], or [B, C] for the metric of a class.

    Empty without a champion. A classifier has only metrics that are made of counts.
    """
    baseline: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The metrics of a baseline that ignores the images. Empty for a slice."""

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
) -> ExampleGroup:
    """Returns a group with 95 % intervals of the challenger's metrics that are made of counts.

    The intervals of the accuracies are Wilson's, because a bootstrap is less accurate near 1.
    `predictions` and `evaluations` are of the challenger and, if there is one, of the champion.
    """
    counted = draw_samples(labels, predictions, len(evaluations[0].classes))
    own = _draw_means([each.own for each in predictions], len(labels))
    draws = [counts | means for counts, means in zip(counted, own, strict=True)]
    group = build_drawn_group(len(labels), evaluations, draws, slice, value, baseline)
    metrics, intervals = group.challenger.metrics, dict(group.challenger.intervals)
    for name in _PROPORTIONS:
        right = round(metrics[name] * len(labels))
        intervals[name] = compute_wilson_interval_95(right, len(labels))
    challenger = group.challenger.model_copy(update={"intervals": intervals})
    return dataclasses.replace(group, challenger=challenger)


def build_drawn_group(
    num_examples: int,
    evaluations: Sequence[ModelEvaluation],
    draws: Iterable[Mapping[str, np.ndarray]],
    slice: str = "",
    value: str = "",
    baseline: Mapping[str, float] | None = None,
) -> ExampleGroup:
    """Returns a group with 95 % intervals of the metrics that have draws.

    `draws` has the draws of each model by metric. Undefined draws are NaN and are left out.
    """
    challenger, *champions = evaluations
    own, *others = draws
    intervals = {
        name: compute_interval_95(_drop_undefined(values))
        for name, values in own.items()
        if name in challenger.metrics
    }
    return ExampleGroup(
        num_examples,
        challenger.model_copy(update={"intervals": intervals}),
        champions[0] if champions else None,
        slice,
        value,
        {
            name: _drop_undefined(values - others[0][name])
            for name, values in (own.items() if others else ())
            # No rule has both a class and a slice, and the draws of the classes are large.
            if name in challenger.metrics or (values.ndim == 2 and not slice)
        },
        baseline or {},
    )


def _drop_undefined(draws: np.ndarray) -> np.ndarray:
    return draws[~np.isnan(draws)] if draws.ndim == 1 else draws


def build_slice_groups(
    labels: np.ndarray,
    predictions: Sequence[ModelPredictions],
    slices: Mapping[str, np.ndarray],
    class_names: Sequence[str],
) -> list[ExampleGroup]:
    """Returns a group for each value of each slice, in the order of the config and of the values.

    `slices` has the value (text, [N]) of every example, by the slice's name.
    """
    found = []
    for name, value, indexes in iterate_values(slices):
        models = [each.select(indexes) for each in predictions]
        evaluations = [evaluate_counts(labels[indexes], model, class_names) for model in models]
        found.append(build_group(labels[indexes], models, evaluations, name, value))
    return found
