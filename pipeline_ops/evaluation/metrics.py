"""Metrics of a classifier, from its answers.

Plain numpy, because importing a library takes longer than the work. Pure functions, used by the
job, the gate and the report. The figures equal scikit-learn's (tests compare them).

Legend: N examples, C classes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from pipeline_ops.artifacts.results import ClassFigures, ModelEvaluation
from pipeline_ops.evaluation.scores import Ranking, calibration, calibration_error

_Z_95 = 1.959963984540054  # 97.5 % quantile of the normal distribution


@dataclasses.dataclass(frozen=True)
class ModelAnswer:
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
class Curves:
    """Precision at each of `scores.RECALLS`, for every class that has examples.

    `by_class` is float [101] by the class's index.
    """

    by_class: dict[int, np.ndarray]

    @property
    def mean(self) -> np.ndarray:
        return np.mean(list(self.by_class.values()), axis=0)


def evaluate_model(
    labels: np.ndarray,
    answer: ModelAnswer,
    class_names: Sequence[str],
    top_k: int,
    calibration_bins: int,
) -> tuple[ModelEvaluation, Curves]:
    """Returns all figures of one model except its intervals, and its precision-recall curves.

    Averages over classes, and the worst class, leave out classes without examples, because there is
    nothing to find.
    """
    counted = evaluate_answers(labels, answer.classes, class_names)
    rankings = [Ranking(answer.scores[index], labels == index) for index in range(len(class_names))]
    classes = [
        figures.model_copy(
            update={"roc_auc": ranking.roc_auc, "average_precision": ranking.average_precision}
        )
        for figures, ranking in zip(counted.classes, rankings, strict=True)
    ]
    bins = calibration(answer.confidences, answer.classes == labels, calibration_bins)
    areas = {
        f"macro_{name}": [
            value
            for figures in classes
            if figures.support and (value := getattr(figures, name)) is not None
        ]
        for name in ("roc_auc", "average_precision")
    }
    metrics = {
        **counted.metrics,
        "top_k_accuracy": float(np.mean(answer.ranks < top_k)),
        **{name: _mean(values) for name, values in areas.items() if values},
        "calibration_error": calibration_error(bins),
    }
    curves = {
        index: precisions
        for index, ranking in enumerate(rankings)
        if (precisions := ranking.precisions()) is not None
    }
    return counted.model_copy(
        update={"metrics": metrics, "classes": classes, "calibration": bins}
    ), Curves(curves)


def evaluate_answers(
    labels: np.ndarray, classes: np.ndarray, class_names: Sequence[str]
) -> ModelEvaluation:
    """Returns the figures that follow from right and wrong answers alone.

    Args:
      labels: int64 [N], the truth.
      classes: int64 [N], the answers.
      class_names: C names.
    """
    confusion = confusion_matrix(labels, classes, len(class_names))
    per_class = [_class_figures(confusion, index, name) for index, name in enumerate(class_names)]
    present = [figures for figures in per_class if figures.support]
    return ModelEvaluation(
        metrics={
            "accuracy": float(np.trace(confusion) / len(labels)),
            "macro_precision": _mean([figures.precision for figures in present]),
            "macro_recall": _mean([figures.recall for figures in present]),
            "macro_f1": _mean([figures.f1 for figures in present]),
            "worst_class_recall": min(figures.recall for figures in present),
        },
        classes=per_class,
        confusion=confusion.tolist(),
    )


def confusion_matrix(labels: np.ndarray, classes: np.ndarray, num_classes: int) -> np.ndarray:
    """Counts examples of class i (row) that were taken for class j (column): int64 [C, C]."""
    return np.bincount(labels * num_classes + classes, minlength=num_classes**2).reshape(
        num_classes, num_classes
    )


def wilson_interval_95(num_correct: int, num_examples: int) -> tuple[float, float]:
    """Returns Wilson's score interval (1927) for a proportion.

    It holds its 95 % near 0 and 1 as well, where accuracies are.
    """
    share, z2 = num_correct / num_examples, _Z_95**2
    centre = (share + z2 / (2 * num_examples)) / (1 + z2 / num_examples)
    half = (
        _Z_95
        / (1 + z2 / num_examples)
        * math.sqrt(share * (1 - share) / num_examples + z2 / (4 * num_examples**2))
    )
    return max(0.0, centre - half), min(1.0, centre + half)


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
        mcnemar_p_value(only_first, only_second),
    )


def mcnemar_p_value(num_only_first: int, num_only_second: int) -> float:
    """Computes McNemar's exact two-sided test (1947), for two models on the same examples.

    Returns the probability that models of equal quality differ so unevenly, or more so, on the
    examples that only one of them gets right. Each of these is one toss of a fair coin. The
    computation uses integers, so it is exact for any count.
    """
    throws, fewer = num_only_first + num_only_second, min(num_only_first, num_only_second)
    ways = total = 1
    for heads in range(fewer):
        ways = (
            ways * (throws - heads) // (heads + 1)
        )  # binomial coefficients, each from the previous one
        total += ways
    return min(1.0, 2 * total / 2**throws)


def _class_figures(confusion: np.ndarray, index: int, name: str) -> ClassFigures:
    correct, support, predicted = (
        confusion[index, index],
        confusion[index].sum(),
        confusion[:, index].sum(),
    )
    return ClassFigures(
        name=name,
        precision=_share(correct, predicted),
        recall=_share(correct, support),
        f1=_share(2 * correct, support + predicted),
        support=int(support),
    )


def _share(part: int, whole: int) -> float:
    return float(part / whole) if whole else 0.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
