"""Which record goes into which shard."""

from __future__ import annotations

import dataclasses
import random

import pytest

from beam_jobs.plan import Record, check_labels, class_names_of, plan_shards, planned_labels, split_of, task_of
from beam_jobs.stages.stage import Box
from pipeline_ops.contracts.config import Split
from pipeline_ops.contracts.errors import DataError
from pipeline_ops.contracts.listing import RawFile

SPLIT = Split(train=0.8, validation=0.1, test=0.1, seed=7)


def records(count: int) -> list[Record]:
    return [Record(RawFile(f"class{index % 3}/{index}.png", 1, ""), f"class{index % 3}") for index in range(count)]


def keys_by_split(plans) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for plan in plans:
        found.setdefault(plan.split, []).extend(record.key for record in plan.records)
    return found


def test_every_record_is_in_exactly_one_shard():
    planned = [key for keys in keys_by_split(plan_shards(records(1000), SPLIT, 8)).values() for key in keys]
    assert sorted(planned) == sorted(record.key for record in records(1000))


def test_the_order_of_the_listing_changes_nothing():
    shuffled = records(500)
    random.Random(1).shuffle(shuffled)
    assert plan_shards(shuffled, SPLIT, 8) == plan_shards(records(500), SPLIT, 8)


def test_a_record_stays_in_its_split_when_others_come():
    few, many = (keys_by_split(plan_shards(records(count), SPLIT, 8)) for count in (300, 3000))
    for split, keys in few.items():
        assert set(keys) <= set(many[split])


def test_the_number_of_shards_does_not_change_the_order():
    one, eight = (keys_by_split(plan_shards(records(300), SPLIT, count)) for count in (1, 8))
    assert one == eight


def test_shards_of_a_split_differ_by_at_most_one_record():
    for split in ("train", "validation", "test"):
        sizes = [len(plan.records) for plan in plan_shards(records(1003), SPLIT, 8) if plan.split == split]
        assert len(sizes) == 8
        assert max(sizes) - min(sizes) <= 1


def test_splits_have_about_their_shares():
    sizes = {split: len(keys) for split, keys in keys_by_split(plan_shards(records(10_000), SPLIT, 8)).items()}
    assert sizes == pytest.approx({"train": 8000, "validation": 1000, "test": 1000}, rel=0.1)


def test_another_seed_gives_other_splits_and_another_order():
    other = Split(train=0.8, validation=0.1, test=0.1, seed=8)
    assert keys_by_split(plan_shards(records(300), SPLIT, 1)) != keys_by_split(plan_shards(records(300), other, 1))


def test_a_key_keeps_its_split_over_versions_of_this_code():
    """Written down once: a change here moves test examples into the training of everybody."""
    splits = [split_of(f"cat/{index}.png", SPLIT) for index in range(24)]
    assert [index for index, split in enumerate(splits) if split == "validation"] == [1, 6, 10, 20]
    assert [index for index, split in enumerate(splits) if split == "test"] == [4, 5, 7, 16, 17]


def test_a_record_with_a_split_of_its_own_is_in_that_one():
    given = [dataclasses.replace(record, split="test") for record in records(50)]
    others = [dataclasses.replace(record, file=RawFile(f"other/{record.key}", 1, "")) for record in records(50)]
    planned = keys_by_split(plan_shards([*given, *others], SPLIT, 2))
    assert {record.key for record in given} <= set(planned["test"])
    assert {split: set(keys) - {record.key for record in given} for split, keys in planned.items()} == {
        split: set(keys) for split, keys in keys_by_split(plan_shards(others, SPLIT, 2)).items()}


def test_a_detector_needs_one_class_and_its_boxes_are_counted():
    boxed = [dataclasses.replace(record, label="", boxes=(Box(0, 0, 1, 1, "cell"),) * (index % 3)) for index, record in enumerate(records(60))]
    assert (task_of(boxed), class_names_of(boxed)) == ("detection", ["cell"])
    labels = planned_labels(plan_shards(boxed, SPLIT, 1))
    assert sum(counts["cell"] for counts in labels.values()) == 60
    check_labels(labels, ["cell"], "raw", "detection")
    with pytest.raises(DataError, match="raw: a detector needs boxes, found none"):
        check_labels(labels, [], "raw", "detection")


def test_one_class_is_no_classification():
    one = [record for record in records(100) if record.label == "class1"]
    with pytest.raises(DataError, match="two classes or more, found class1; put the images of each class into a folder of its own"):
        check_labels(planned_labels(plan_shards(one, SPLIT, 1)), class_names_of(one), "raw")


def test_a_class_without_training_examples_is_named():
    labels = {"train": {"a": 5}, "validation": {"b": 1}, "test": {"a": 1}}
    with pytest.raises(DataError, match="no training example of b"):
        check_labels(labels, ["a", "b"], "raw")


def test_an_empty_split_is_named_with_what_to_do():
    labels = {"train": {"a": 5, "b": 5}, "validation": {}, "test": {"a": 1}}
    with pytest.raises(DataError, match="the validation split has no example; add images, or raise preprocess.split.validation"):
        check_labels(labels, ["a", "b"], "raw")
