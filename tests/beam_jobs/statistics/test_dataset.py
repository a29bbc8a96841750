"""Duplicates over shards and splits, and distances, against scipy where it has them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from beam_jobs.planning.plan import Record
from beam_jobs.statistics.dataset import (
    SplitStatistics,
    compute_distances,
    find_duplicates,
)
from pipeline_ops.config.preprocess import Drift
from pipeline_ops.contract.features import LABELS, Histogram, jensen_shannon, l_infinity
from pipeline_ops.raw_data.raw_file import RawFile


def records(**contents: str) -> list[Record]:
    return [Record(RawFile(key, 1, int(digest)), "cat") for key, digest in contents.items()]


def test_groups_that_reach_over_splits_come_first():
    found = find_duplicates(
        {"train": records(a="1", b="1", c="2", d="3", g="1"), "test": records(e="2", f="4")}
    )
    assert [(group.keys, group.splits) for group in found.groups] == [
        (["c", "e"], ["train", "test"]),
        (["a", "b", "g"], ["train"] * 3),
    ]
    assert (found.num_groups, found.num_groups_across_splits, found.num_superfluous) == (2, 1, 3)


def test_keys_that_do_not_count_make_no_group():
    assert (
        find_duplicates(
            {"train": records(a="1", b="1"), "test": records(c="1")}, excluded_keys=["a", "c"]
        ).num_groups
        == 0
    )


def test_where_all_differ_there_is_nothing_to_name():
    found = find_duplicates({"train": records(a="1", b="2")})
    assert (
        found.num_groups,
        found.num_groups_across_splits,
        found.num_superfluous,
        found.groups,
    ) == (0, 0, 0, [])


def test_of_very_many_groups_only_the_first_are_named():
    found = find_duplicates(
        {
            "train": records(
                **{f"{kind}{index:03d}": f"{index}" for kind in "ab" for index in range(60)}
            )
        }
    )
    assert found.num_groups == 60
    assert len(found.groups) == 50


@pytest.mark.parametrize("seed", range(20))
def test_jensen_shannon_is_scipys(seed):
    random = np.random.default_rng(seed)
    p, q = random.poisson(2, 30), random.poisson(1, 30)
    assert jensen_shannon(p.tolist(), q.tolist()) == pytest.approx(
        jensenshannon(p, q, base=2), abs=1e-12
    )


@pytest.mark.parametrize(
    ("p", "q", "js", "linf"),
    [
        ([1, 2, 3], [10, 20, 30], 0, 0),
        ([5, 0], [0, 7], 1, 1),
        ([1, 1, 0, 0], [0, 0, 1, 1], 1, 0.5),
        ([3, 1], [1, 1], None, 0.25),
    ],
)
def test_distances_reach_from_the_same_to_nothing_in_common(p, q, js, linf):
    assert jensen_shannon(p, q) == (
        pytest.approx(jensenshannon(p, q, base=2)) if js is None else pytest.approx(js, abs=1e-7)
    )
    assert l_infinity(p, q) == l_infinity(q, p) == pytest.approx(linf)


def split(labels: dict[str, int], **counts: list[int]) -> SplitStatistics:
    features = {name: Histogram(found, count=sum(found)) for name, found in counts.items()}
    return SplitStatistics(num_examples=sum(labels.values()), labels=labels, features=features)


def test_what_is_above_a_threshold_is_marked_and_the_largest_comes_first():
    ours = split({"cat": 5, "dog": 5}, brightness=[5, 5], contrast=[1, 9])
    theirs = split({"cat": 4, "dog": 6}, brightness=[5, 5], contrast=[9, 1])
    found = compute_distances(ours, theirs, Drift(max_js_distance=0.1, max_linf_distance=0.1))
    assert [(distance.feature, distance.is_above) for distance in found] == [
        ("contrast", True),
        (LABELS, False),
        ("brightness", False),
    ]
    assert found[1].l_infinity == pytest.approx(0.1)


def test_one_of_the_two_thresholds_is_enough():
    ours, theirs = split({"a": 1}, brightness=[60, 40]), split({"a": 1}, brightness=[40, 60])
    for drift in (
        Drift(max_js_distance=0.9, max_linf_distance=0.1),
        Drift(max_js_distance=0.1, max_linf_distance=0.9),
    ):
        assert compute_distances(ours, theirs, drift)[0].is_above
    high = Drift(max_js_distance=0.9, max_linf_distance=0.9)
    assert not compute_distances(ours, theirs, high)[0].is_above


def test_a_new_class_is_a_drift_of_the_classes():
    [found] = compute_distances(split({"cat": 5, "bird": 5}), split({"cat": 10}), Drift())
    assert found.feature == LABELS
    assert found.l_infinity == 0.5


def test_a_feature_that_only_one_has_is_not_compared():
    [found] = compute_distances(split({"a": 1}, box_area=[1, 1]), split({"a": 2}), Drift())
    assert found.feature == LABELS
