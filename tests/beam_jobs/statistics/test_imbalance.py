"""Splits and shards that are unbalanced by class: how often chance is called that, and what never
stays unseen."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from sklearn.datasets import load_digits

from beam_jobs.planning.splits import assign_split
from beam_jobs.statistics.imbalance import (
    compute_dispersion,
    compute_probability,
    find_imbalance,
)
from beam_jobs.statistics.summary import measure_histogram
from pipeline_ops.artifacts.dataset import SPLITS
from pipeline_ops.config.preprocess import Split

NUM_SEEDS = 1000
SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
DIGITS = load_digits().target[:600]
RARE = np.array([0] * 500 + [1] * 60 + [2] * 30 + list(range(3, 13)))
"""Ten of its classes have a single example."""


def count(parts, labels, copies: int = 1) -> dict[str, Counter]:
    found = defaultdict(Counter)
    for part, label in zip(parts, labels, strict=True):
        found[part][str(label)] += copies
    return found


@pytest.mark.parametrize("labels", [DIGITS, RARE], ids=["ten classes", "rare classes"])
def test_of_a_thousand_random_splits_hardly_any_is_called_unbalanced(labels):
    """0.1 are to be expected of 1,000."""
    found = [
        find_imbalance(count((assign_split(f"{n}.png", split) for n in range(600)), labels))
        for split in (Split(**SHARES, seed=seed) for seed in range(NUM_SEEDS))
    ]
    assert sum(map(bool, found)) <= 2


def test_tiles_and_copies_of_an_image_count_as_one_draw():
    """Each image has nine examples. Taken as independent, they are almost always unbalanced."""
    tables = []
    for seed in range(200):
        split = Split(**SHARES, seed=seed)
        tables.append(count((assign_split(f"{n}.png", split) for n in range(600)), DIGITS, 9))
    records, examples = dict.fromkeys(SPLITS, 10), dict.fromkeys(SPLITS, 90)
    dispersion = compute_dispersion(examples, records)
    assert dispersion == 9
    assert sum(bool(find_imbalance(table, dispersion)) for table in tables) == 0
    assert sum(bool(find_imbalance(table)) for table in tables) > 150


def test_boxes_of_an_image_count_by_their_clusters():
    boxes = measure_histogram("boxes_per_image", [1, 1, 10])
    same = dict.fromkeys(SPLITS, 10)
    assert compute_dispersion(same, same, boxes_per_image=boxes) == pytest.approx(102 / 12)


def test_groups_count_by_their_size(pipeline, encode):
    """40 groups of 25 images of one class each: unbalanced splits are chance."""
    write_labels(pipeline, encode, [(n // 25 % 2, "", f"{n // 25}") for n in range(1000)])
    assert pipeline.make(source=CSV).manifest.figures["warnings"] == []


CSV = {"type": "csv", "path": "../raw", "manifest": "labels.csv", "task": "classification"}


def write_labels(pipeline, encode, rows) -> None:
    """Writes small images and their table, from rows of class, split and group."""
    lines = ["path,label,split,group"]
    for index, (label, split, group) in enumerate(rows):
        pipeline.add(f"{index:04d}.png", encode(seed=index))
        lines.append(f"{index:04d}.png,{'cat' if label else 'dog'},{split},{group}")
    pipeline.add("labels.csv", "\n".join(lines).encode())


def test_splits_of_the_source_that_are_sorted_by_class_are_a_warning_in_log_and_page(
    pipeline, encode, caplog
):
    splits = ["train"] * 160 + ["validation"] * 20 + ["test"] * 20
    write_labels(pipeline, encode, [(n >= 150, split, "") for n, split in enumerate(splits)])
    outcome = pipeline.make(source=CSV)
    [warning] = outcome.manifest.figures["warnings"]
    assert warning == (
        "The splits are unbalanced by class beyond chance: test has 20 of cat, and by its size it "
        "would have 5.0, and 5 more numbers are unlikely. Set preprocess.split.stratify: true, or "
        "correct the splits or groups that the source gives."
    )
    assert warning in caplog.text
    assert warning in (outcome.artifact / "data.html").read_text()
    shuffled = [(n % 4 == 0, split, "") for n, split in enumerate(splits)]
    write_labels(pipeline, encode, shuffled)
    assert pipeline.make(source=CSV).manifest.figures["warnings"] == []


def test_shards_that_are_unbalanced_are_a_warning_of_their_split(pipeline, encode):
    """A second generation of one class alone has shards of its own."""
    rest = [(n % 41 == 0, ("validation", "test")[n % 2], "") for n in range(80)]
    first = [(False, "train", "")] * 200 + [(True, "train", "")] * 5 + rest
    write_labels(pipeline, encode, first)
    pipeline.make(source=CSV)
    write_labels(pipeline, encode, first + [(True, "train", "")] * 60)
    figures = pipeline.make(source=CSV).manifest.figures
    assert figures["generation"] == 2
    [warning] = [each for each in figures["warnings"] if "shards" in each]
    assert "The shards are unbalanced by class beyond chance: train-g0002-0" in warning
    assert "It matters only for train.input.shuffle: shards" in warning


def test_a_split_that_is_sorted_by_class_is_always_called_unbalanced():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        labels = np.sort(rng.integers(0, rng.integers(2, 30), rng.integers(200, 2000)))
        parts = np.array(SPLITS)[np.searchsorted([0.8, 0.9], np.linspace(0, 0.999, labels.size))]
        found = find_imbalance(count(parts, labels))
        assert found is not None
        assert found.num_others > 0


def test_the_number_that_stands_out_most_is_named():
    counts = {"train": {"cat": 800, "dog": 800}, "test": {"cat": 150, "dog": 50}}
    found = find_imbalance(counts)
    assert (found.part, found.class_name, found.number) == ("test", "dog", 50)
    assert found.expected == pytest.approx(200 * 850 / 1800)
    assert found.num_others == 3


@pytest.mark.parametrize(
    "counts",
    [
        {},
        {"train": {}, "test": {}},
        {"train": {"cat": 1}, "test": {}},
        {"train": {"cat": 9000}, "test": {"cat": 10}},
        {"train": {"cat": 9000, "dog": 3}},
    ],
)
def test_one_class_or_one_part_cannot_be_unbalanced(counts):
    assert find_imbalance(counts) is None


@pytest.mark.parametrize(
    "numbers",
    [(0, 20, 30, 100), (9, 20, 30, 100), (20, 20, 30, 100), (1, 100, 1, 10_000), (90, 95, 95, 100)],
)
def test_the_probability_is_that_of_the_hypergeometric_distribution(numbers):
    drawn, size, of_class, total = numbers
    ways = [comb(of_class, k) * comb(total - of_class, size - k) for k in range(size + 1)]
    tail = Fraction(min(sum(ways[: drawn + 1]), sum(ways[drawn:])), sum(ways))
    assert compute_probability(drawn, size, of_class, total) == pytest.approx(
        float(min(1, 2 * tail)), rel=1e-9
    )
