"""Metrics of a classifier, from its answers.

Plain numpy, because the import of scipy.stats or scikit-learn takes longer than the work (0.45 s
and 0.8 s of a job of 5 s). Pure functions, used by the job, the gate and the report. The figures
equal theirs (tests compare them).

Legend: N examples, C classes.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np

from pipeline_ops.artifacts.results import ClassFigures, ModelEvaluation
from pipeline_ops.evaluation.bootstrap import TopKPredictions
from pipeline_ops.evaluation.scores import (
    Ranking,
    compute_calibration_bins,
    compute_calibration_error,
)

_Z_95 = 1.959963984540054  # 97.5 % quantile of the normal distribution


@dataclasses.dataclass(frozen=True)
class ModelPredictions:
    """The answers of one model to N examples.

    `classes`: int64 [N]. `ranks`: int [N], the number of classes before the label. `confidences`:
    float [N], the probability of the answer. `scores`: float [C, N], the probabilities, by class
    because each class is evaluated by itself.
    """

    classes: np.ndarray
    ranks: np.ndarray
    confidences: np.ndarray
    scores: np.ndarray


@dataclasses.dataclass(frozen=True)
class PrecisionRecallCurves:
    """Precision at each of `scores.RECALL_THRESHOLDS`, for every class that has examples.

    `by_class` is float [101] by the class's index.
    """

    by_class: dict[int, np.ndarray]

    @property
    def mean(self) -> np.ndarray:
        mean: np.ndarray = np.mean(list(self.by_class.values()), axis=0)
        return mean

    def to_json(self, class_names: Sequence[str]) -> dict[str, list[float]]:
        """Returns the precisions of each class by its name, rounded."""
        return {
            class_names[index]: values.round(4).tolist() for index, values in self.by_class.items()
        }


def evaluate_model(
    labels: np.ndarray,
    predictions: ModelPredictions,
    class_names: Sequence[str],
    top_k: int,
) -> tuple[ModelEvaluation, PrecisionRecallCurves]:
    """Returns all figures of one model except its intervals, and its precision-recall curves.

    Averages over classes, and the worst class, leave out classes without examples, because there is
    nothing to find.
    """
    right = TopKPredictions(predictions.classes, predictions.ranks < top_k)
    evaluation = evaluate_predictions(labels, right, class_names)
    rankings = [
        Ranking(predictions.scores[index], labels == index) for index in range(len(class_names))
    ]
    classes = [
        figures.model_copy(
            update={"roc_auc": ranking.roc_auc, "average_precision": ranking.average_precision}
        )
        for figures, ranking in zip(evaluation.classes, rankings, strict=True)
    ]
    bins = compute_calibration_bins(predictions.confidences, predictions.classes == labels)
    present = [figures for figures in classes if figures.support]
    areas = {
        "macro_roc_auc": [each.roc_auc for each in present if each.roc_auc is not None],
        "macro_average_precision": [
            each.average_precision for each in present if each.average_precision is not None
        ],
    }
    metrics = {
        **evaluation.metrics,
        **{name: statistics.fmean(values) for name, values in areas.items() if values},
        "calibration_error": compute_calibration_error(bins),
    }
    curves = {
        index: precisions
        for index, ranking in enumerate(rankings)
        if (precisions := ranking.interpolate_precisions()) is not None
    }
    return evaluation.model_copy(
        update={"metrics": metrics, "classes": classes, "calibration": bins}
    ), PrecisionRecallCurves(curves)


def evaluate_predictions(
    labels: np.ndarray, predictions: TopKPredictions, class_names: Sequence[str]
) -> ModelEvaluation:
    """Returns the figures that follow from right and wrong answers alone.

    Args:
      labels: int64 [N], the truth.
      predictions: the answers.
      class_names: C names.
    """
    confusion = compute_confusion_matrix(labels, predictions.classes, len(class_names))
    classes = compute_class_figures(confusion, class_names)
    present = [figures for figures in classes if figures.support]
    return ModelEvaluation(
        metrics={
            "accuracy": float(np.trace(confusion) / len(labels)),
            "macro_precision": statistics.fmean(figures.precision for figures in present),
            "macro_recall": statistics.fmean(figures.recall for figures in present),
            "macro_f1": statistics.fmean(figures.f1 for figures in present),
            "worst_class_recall": min(figures.recall for figures in present),
            "top_k_accuracy": float(predictions.is_in_top_k.mean()),
        },
        classes=classes,
        confusion=confusion.tolist(),
    )


def compute_confusion_matrix(
    labels: np.ndarray, classes: np.ndarray, num_classes: int
) -> np.ndarray:
    """Counts examples of class i (row) that were taken for class j (column): int64 [C, C]."""
    return np.bincount(labels * num_classes + classes, minlength=num_classes**2).reshape(
        num_classes, num_classes
    )


def compute_wilson_interval_95(num_correct: int, num_examples: int) -> tuple[float, float]:
    """Returns Wilson's score interval (1927) for a proportion.

    It holds its 95 % near 0 and 1 as well, where accuracies are.
    """
    share, z2 = num_correct / num_examples, _Z_95**2 / num_examples
    centre = share + z2 / 2
    half = math.sqrt(z2 * (share * (1 - share) + z2 / 4))
    return max(0.0, (centre - half) / (1 + z2)), min(1.0, (centre + half) / (1 + z2))


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The comparison of two models on the same examples.

    It has numbers of examples, and the p-value of McNemar's exact test.
    """

    both_right: int
    only_challenger_right: int
    only_champion_right: int
    both_wrong: int
    mcnemar_p_value: float


def compare(labels: np.ndarray, challenger: np.ndarray, champion: np.ndarray) -> Comparison:
    """Pairs the answers (int64 [N]) of two models, example by example."""
    first, second = challenger == labels, champion == labels
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    return Comparison(
        int((first & second).sum()),
        only_first,
        only_second,
        int((~first & ~second).sum()),
        compute_mcnemar_p_value(only_first, only_second),
    )


def compute_mcnemar_p_value(num_only_first: int, num_only_second: int) -> float:
    """Computes McNemar's exact two-sided test (1947), for two models on the same examples.

    Returns the probability that models of equal quality differ so unevenly, or more so, on the
    examples that only one of them gets right. Each of these is one toss of a fair coin. The
    computation uses integers, so it is exact for any count.
    """
    num_tosses, num_heads = num_only_first + num_only_second, min(num_only_first, num_only_second)
    ways = total = 1
    for heads in range(num_heads):
        ways = ways * (num_tosses - heads) // (heads + 1)  # the next binomial coefficient
        total += ways
    return min(1.0, 2 * total / (1 << num_tosses))


def compute_class_figures(confusion: np.ndarray, class_names: Sequence[str]) -> list[ClassFigures]:
    """Returns precision, recall and F1 of each class. `confusion` is int [C or more, C or more]."""
    return [
        ClassFigures(
            name=name,
            precision=_divide(correct, predicted),
            recall=_divide(correct, support),
            f1=_divide(2 * correct, support + predicted),
            support=support,
        )
        for name, correct, support, predicted in zip(
            class_names,
            confusion.diagonal().tolist(),
            confusion.sum(axis=1).tolist(),
            confusion.sum(axis=0).tolist(),
            strict=False,
        )
    ]


def _divide(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
