"""Splits that are unbalanced by class: what is told, and how seldom chance is."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from beam_jobs.planning.splits import assign_split
from beam_jobs.statistics.dataset import describe_imbalance
from pipeline_ops.config.preprocess import Split
from pipeline_ops.contract.dataset import SPLITS

SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
DIGITS = load_digits().target
RARE = np.array([0] * 3000 + [1] * 500 + [2] * 60 + list(range(3, 13)))
"""Ten of its classes have a single example."""
CSV = {"type": "csv", "path": "../raw", "manifest": "labels.csv", "task": "classification"}


def count(splits, labels) -> dict[str, dict[str, int]]:
    found = {split: dict.fromkeys(map(str, np.unique(labels)), 0) for split in SPLITS}
    for split, label in zip(splits, labels, strict=True):
        found[split][str(label)] += 1
    return found


@pytest.mark.parametrize("labels", [DIGITS, RARE], ids=["ten classes", "rare classes"])
def test_of_200_random_splits_hardly_any_is_called_unbalanced(labels):
    found = [
        describe_imbalance(count([assign_split(f"{n}", split) for n in range(labels.size)], labels))
        for split in (Split(**SHARES, seed=seed) for seed in range(200))
    ]
    assert sum(map(bool, found)) <= 1


def test_a_split_that_is_sorted_by_class_is_always_called_unbalanced():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        labels = np.sort(rng.integers(0, rng.integers(2, 15), rng.integers(1000, 3000)))
        splits = np.array(SPLITS)[np.searchsorted([0.8, 0.9], np.linspace(0, 0.999, labels.size))]
        [sentence] = describe_imbalance(count(splits, labels))
        assert "more numbers differ as much" in sentence


def write_labels(pipeline, encode, rows) -> None:
    """Writes small images and their table, from rows of class and split."""
    lines = ["path,label,split"]
    for index, (label, split) in enumerate(rows):
        pipeline.add(f"{index:04d}.png", encode(seed=index))
        lines.append(f"{index:04d}.png,{'cat' if label else 'dog'},{split}")
    pipeline.add("labels.csv", "\n".join(lines).encode())


def test_splits_of_the_source_that_are_sorted_by_class_are_a_warning_in_log_and_page(
    pipeline, encode, caplog
):
    splits = ["train"] * 400 + ["validation"] * 50 + ["test"] * 50
    write_labels(pipeline, encode, [(n >= 375, split) for n, split in enumerate(splits)])
    outcome = pipeline.make(source=CSV)
    warning, untested = outcome.manifest.figures["warnings"]
    assert untested == "No test example of dog, so no figure says how well the model finds it."
    assert warning == (
        "The splits are unbalanced by class: validation has 50 of cat, and by its size it would "
        "have 12.5, and 2 more numbers differ as much. Set preprocess.split.stratify: true, or "
        "correct the splits or groups that the source gives."
    )
    assert warning in caplog.text
    assert warning in (outcome.artifact / "data.html").read_text()
    shuffled = [(n % 4 == 0, split) for n, split in enumerate(splits)]
    write_labels(pipeline, encode, shuffled)
    assert pipeline.make(source=CSV).manifest.figures["warnings"] == []


@pytest.mark.parametrize(
    "number, is_told", [(24, True), (25, False), (50, False), (75, False), (76, True)]
)
def test_a_share_that_differs_by_more_than_half_is_told(number, is_told):
    """By its size, the test split would have 50 cats."""
    labels = {
        "train": {"cat": 500 - number, "dog": 4000 + number},
        "test": {"cat": number, "dog": 500 - number},
    }
    assert bool(describe_imbalance(labels)) is is_told


def test_the_number_that_stands_out_most_is_named():
    labels = {
        "train": {"cat": 900, "dog": 700, "cow": 0},
        "test": {"cat": 20, "dog": 180, "cow": 0},
    }
    [sentence] = describe_imbalance(labels)
    assert "test has 180 of dog, and by its size it would have 97.8, and 1 more numbers" in sentence


@pytest.mark.parametrize(
    "labels",
    [
        {"train": {}, "test": {}},
        {"train": {"cat": 0}, "test": {"cat": 0}},
        {"train": {"cat": 9000}, "test": {"cat": 10}},
        {"train": {"cat": 9000, "dog": 49}, "test": {"cat": 0, "dog": 0}},
        {"train": {"cat": 9000, "dog": 0}, "test": {"cat": 1000, "dog": 49}},
    ],
)
def test_one_class_one_split_or_few_examples_cannot_be_unbalanced(labels):
    assert describe_imbalance(labels) == []
