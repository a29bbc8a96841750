"""The titles of metrics, the same on all pages and in the terminal."""

from __future__ import annotations

from collections.abc import Mapping

TITLES: Mapping[str, tuple[str, str]] = {
    "accuracy": ("Accuracy", "share of images that were classified correctly"),
    "top_k_accuracy": ("Top-{k} accuracy", "the label is among the {k} most probable"),
    "macro_precision": ("Precision", "mean over classes"),
    "macro_recall": ("Recall", "mean over classes"),
    "macro_f1": ("F1", "mean over classes"),
    "worst_class_recall": ("Recall of the worst class", "the lowest recall of a class"),
    "macro_roc_auc": ("ROC area", "one class against all others, mean"),
    "macro_average_precision": ("Precision-recall area", "average precision, mean over classes"),
    "calibration_error": (
        "Calibration error",
        "distance of the probabilities from the truth, lower is better",
    ),
    "map": ("mAP@[.5:.95]", "mean over classes and ten thresholds of IoU"),
    "map_50": ("mAP@0.5", "mean over classes"),
    "map_75": ("mAP@0.75", "mean over classes"),
}
"""The title and the meaning of each metric of an evaluation, by its key in the YAML."""
_SPELLINGS = {"f1": "F1", "roc": "ROC", "auc": "AUC", "map": "mAP"}


def describe_metric(metric: str, top_k: int | None = None) -> tuple[str, str]:
    """Returns the title and the meaning of a metric. The meaning of an author's own one is ""."""
    title, meaning = TITLES.get(metric, (_spell(metric), ""))
    k = "k" if top_k is None else top_k
    return title.format(k=k), meaning.format(k=k)


def format_metric_title(metric: str) -> str:
    """Returns the title of a metric, or of any other curve: `GPU_memory_(GB)`, `loss`."""
    return describe_metric(metric)[0]


def _spell(name: str) -> str:
    """Converts `box_loss` to `Box loss`, and `macro_roc_auc` to `Macro ROC AUC`."""
    first, *others = name.replace("{", "{{").replace("}", "}}").split("_")
    words = [first if first in _SPELLINGS or first.isupper() else first.capitalize(), *others]
    return " ".join(_SPELLINGS.get(word, word) for word in words)
