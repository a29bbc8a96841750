"""Duplicates, over shards and splits."""

from __future__ import annotations

from beam_jobs.planning.plan import Record
from beam_jobs.statistics.dataset import find_duplicates
from pipeline_ops.raw_data.raw_file import RawFile


def records(**contents: str) -> list[Record]:
    return [Record(RawFile(key, 1, digest), "cat") for key, digest in contents.items()]


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
