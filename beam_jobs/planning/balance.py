"""Class weights that make all classes count alike in a loss, whatever their sizes. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def compute_class_weights(counts: Mapping[str, int]) -> dict[str, float]:
    """A weight for each class, inverse to its count in the train split.

    The mean weight over all examples of the split is 1. A class without examples weighs 0.
    """
    present = [count for count in counts.values() if count]
    return {
        name: sum(present) / (len(present) * count) if count else 0.0
        for name, count in sorted(counts.items())
    }
