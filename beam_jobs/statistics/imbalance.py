"""Finds splits and shards whose shares of a class differ from the whole by more than chance.

If the examples of a data set are drawn into a part one by one, the number of a class in it follows
a hypergeometric distribution. The two-sided probability of each number is computed exactly, because
the chi-square distribution is wrong by orders of magnitude for the few examples of a rare class.
All numbers of a table together have a chance of 1 in 10,000 to be called unbalanced (Bonferroni).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from beam_jobs.statistics.summary import ShardSummary, count_labels
from pipeline_ops.artifacts.dataset import SPLITS
from pipeline_ops.artifacts.features import Histogram

_MAX_PROBABILITY = 1e-4
_SPLITS_ADVICE = (
    "Set preprocess.split.stratify: true, or correct the splits or groups that the source gives"
)
_SHARDS_ADVICE = "It matters only for train.input.shuffle: shards, whose batches follow the shards"
_MIN_DEVIATIONS = 3.0
"""A number within so many standard deviations is always likely enough."""


class Imbalance(NamedTuple):
    """The number of a table that stands out most: the examples of a class in a part."""

    part: str
    class_name: str
    number: int
    expected: float
    num_others: int
    """How many other numbers of the table are unlikely, too."""


def compute_dispersion(
    num_examples: Mapping[str, int],
    num_records: Mapping[str, int],
    unit_size: float = 1.0,
    boxes_per_image: Histogram | None = None,
) -> float:
    """Returns how many labels are drawn together: those of tiles, copies, groups and boxes.

    For groups and boxes it is the factor on the variance if all members of one have the same class.
    `num_records` are those before the stages, and `unit_size` is the size of a group in records.
    """
    shares = [num_examples[split] / max(1, num_records[split]) for split in SPLITS]
    cluster = 1.0
    if boxes_per_image and boxes_per_image.total:
        cluster = boxes_per_image.total_of_squares / boxes_per_image.total
    return max(1.0, *shares) * max(1.0, unit_size) * max(1.0, cluster)


def describe_imbalances(summaries: Sequence[ShardSummary], dispersion: float) -> list[str]:
    """Returns a sentence on the splits and one on the shards of each split, if unbalanced."""
    tables = [("splits", count_labels(summaries), _SPLITS_ADVICE)]
    for split in SPLITS:
        shards = {each.name: Counter(each.labels) for each in summaries if each.split == split}
        tables.append(("shards", shards, _SHARDS_ADVICE))
    sentences = []
    for parts, counts, advice in tables:
        if found := find_imbalance(counts, dispersion):
            others = f", and {found.num_others} more numbers are unlikely" * bool(found.num_others)
            sentences.append(
                f"The {parts} are unbalanced by class beyond chance: {found.part} has "
                f"{found.number:,} of {found.class_name}, and by its size it would have "
                f"{found.expected:,.1f}{others}. {advice}."
            )
    return sentences


def find_imbalance(
    counts: Mapping[str, Mapping[str, int]], dispersion: float = 1.0
) -> Imbalance | None:
    """Finds the unlikely number with the largest share in chi-square. None if there is none.

    `counts` are examples by part and class.
    """
    names = sorted({name for part in counts.values() for name in part})
    table_PC = np.array([[part.get(name, 0) for name in names] for part in counts.values()])
    if table_PC.size == 0:
        return None
    draws_PC = np.rint(table_PC / dispersion).astype(int)
    sizes_P, classes_C, total = draws_PC.sum(axis=1), draws_PC.sum(axis=0), int(draws_PC.sum())
    if total < 2:
        return None
    expected_PC = np.outer(sizes_P, classes_C) / total
    variance_PC = np.outer(sizes_P / total * (total - sizes_P), classes_C * (total - classes_C)) / (
        total * (total - 1.0)
    )
    is_far_PC = (draws_PC - expected_PC) ** 2 > _MIN_DEVIATIONS**2 * variance_PC
    limit, unlikely = _MAX_PROBABILITY / table_PC.size, []
    for part, name in np.argwhere(is_far_PC).tolist():
        drawn, expected = int(draws_PC[part, name]), float(expected_PC[part, name])
        if compute_probability(drawn, int(sizes_P[part]), int(classes_C[name]), total) < limit:
            unlikely.append(((drawn - expected) ** 2 / expected, part, name))
    if not unlikely:
        return None
    _, part, name = max(unlikely)
    expected = table_PC[part].sum() * table_PC[:, name].sum() / table_PC.sum()
    return Imbalance(
        list(counts)[part], names[name], int(table_PC[part, name]), expected, len(unlikely) - 1
    )


def compute_probability(count: int, size: int, of_class: int, total: int) -> float:
    """Returns the two-sided probability of a number so far from its mean, or farther.

    `size` examples are drawn of `total`, of which `of_class` have the class. It is twice the
    smaller tail, at most 1.
    """
    from scipy.stats import hypergeom  # takes a second, and is seldom needed

    draw = hypergeom(total, of_class, size)
    return min(1.0, 2 * float(min(draw.cdf(count), draw.sf(count - 1))))
