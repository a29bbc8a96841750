"""Which record goes into which shard."""

from __future__ import annotations

import dataclasses
import random

import pytest

from beam_jobs.planning.plan import (
    Record,
    check_labels,
    collect_class_names,
    compute_num_shards,
    count_planned_crowds,
    count_planned_labels,
    infer_task,
    plan_dataset,
    plan_shards,
)
from beam_jobs.stages.stage import Box
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.raw_file import RawFile


def explain(split: str) -> str:
    return f"it is the {split} split"


def records(count: int, num_bytes=lambda index: 1000) -> list[Record]:
    return [
        Record(RawFile(f"class{index % 3}/{index}.png", num_bytes(index), 0), f"class{index % 3}")
        for index in range(count)
    ]


def config(**keys) -> Preprocess:
    return Preprocess.model_validate(
        {
            "source": {"type": "image_folder", "path": "raw"},
            "stages": [{"name": "decode"}],
            "split": {"train": 0.8, "validation": 0.1, "test": 0.1, "seed": 7},
            **keys,
        }
    )


def keys_of(plans) -> list[str]:
    return [record.key for plan in plans for record in plan.records]


def bytes_of(plans) -> list[int]:
    return [sum(record.file.num_bytes for record in plan.records) for plan in plans]


@pytest.mark.parametrize("count, num_shards", [(1, 1), (7, 7), (8, 7), (1000, 8), (1003, 16)])
def test_every_record_is_in_exactly_one_shard(count, num_shards):
    planned = keys_of(plan_shards("train", records(count), 7, num_shards))
    assert sorted(planned) == sorted(record.key for record in records(count))


def test_the_order_of_the_listing_changes_nothing():
    shuffled = records(500, lambda index: index * 37 % 1000)
    random.Random(1).shuffle(shuffled)
    assert plan_shards("train", shuffled, 7, 8) == plan_shards(
        "train", records(500, lambda index: index * 37 % 1000), 7, 8
    )


def test_the_number_of_shards_does_not_change_the_order():
    assert keys_of(plan_shards("train", records(300), 7, 1)) == keys_of(
        plan_shards("train", records(300), 7, 8)
    )


def test_the_order_is_a_shuffle_over_the_whole_split():
    places = {
        key: place for place, key in enumerate(keys_of(plan_shards("train", records(2000), 7, 8)))
    }
    moved = [abs(places[record.key] - place) for place, record in enumerate(records(2000))]
    assert sum(moved) / len(moved) == pytest.approx(
        2000 / 3, rel=0.05
    )  # what a uniform permutation has


def test_another_seed_gives_another_order():
    assert keys_of(plan_shards("train", records(300), 7, 1)) != keys_of(
        plan_shards("train", records(300), 8, 1)
    )


def test_shards_of_equal_records_differ_by_at_most_one_record():
    sizes = [len(plan.records) for plan in plan_shards("train", records(1003), 7, 8)]
    assert len(sizes) == 8
    assert max(sizes) - min(sizes) <= 1


SIZES = {
    "photographs": lambda index: random.Random(index).randint(25_000, 58_000),
    "a few large ones": lambda index: 400_000 if index % 40 == 0 else 20_000,
    "a heavy tail": lambda index: int(random.Random(index).lognormvariate(10, 1)),
}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("count, num_shards", [(400, 4), (800, 16), (3000, 64)])
def test_shards_are_within_a_tenth_of_each_other_in_bytes(sizes, count, num_shards):
    sizes = bytes_of(plan_shards("train", records(count, SIZES[sizes]), 7, num_shards))
    assert max(sizes) <= 1.1 * min(sizes)


def test_a_record_larger_than_all_others_together_has_a_shard_for_itself():
    plans = plan_shards(
        "train", records(50, lambda index: 10_000_000 if index == 20 else 1000), 7, 3
    )
    assert [
        record.file.num_bytes for plan in plans if len(plan.records) == 1 for record in plan.records
    ] == [10_000_000]
    assert sorted(len(plan.records) for plan in plans) == [1, 24, 25]


def test_a_small_split_has_fewer_shards_and_none_is_empty():
    plans = plan_shards("test", records(3), 7, 8)
    assert [plan.name for plan in plans] == [
        f"test-{index:05d}-of-00003.tfrecord" for index in range(3)
    ]
    assert plan_shards("validation", [], 7, 8) == []
    assert all(plan.records for plan in plans)


def test_shards_of_a_later_generation_say_so():
    assert [plan.name for plan in plan_shards("train", records(9), 7, 2, 3)] == [
        "train-g0003-00000-of-00002.tfrecord",
        "train-g0003-00001-of-00002.tfrecord",
    ]


@pytest.mark.parametrize(
    "count, megabytes, wanted",
    [(1000, None, 4), (1000, 1.0, 4), (10_000, 1.0, 12), (10_000, 0.5, 23)],
)
def test_a_target_size_gives_as_many_shards_as_it_takes_and_never_fewer_than_asked_for(
    count, megabytes, wanted
):
    assert compute_num_shards(records(count), config(shards=4, shard_megabytes=megabytes)) == wanted


def test_a_train_split_too_small_for_its_shards_is_told():
    with pytest.raises(
        DataError,
        match=(
            "the train split has 3 records, too few for 4 shards. "
            "Add images, or lower preprocess.shards"
        ),
    ):
        plan_dataset(
            {"train": records(3), "validation": records(3), "test": records(3)}, config(shards=4)
        )


def test_a_detector_needs_one_class_and_its_boxes_are_counted():
    boxed = [
        dataclasses.replace(record, label="", boxes=(Box(0, 0, 1, 1, "cell"),) * (index % 3))
        for index, record in enumerate(records(60))
    ]
    assert (infer_task(boxed), collect_class_names(boxed)) == ("detection", ["cell"])
    labels = count_planned_labels(
        {"train": boxed[:40], "validation": boxed[40:50], "test": boxed[50:]}
    )
    assert sum(counts["cell"] for counts in labels.values()) == 60
    check_labels(labels, ["cell"], "raw", "detection", explain)
    with pytest.raises(DataError, match="raw: a detector needs boxes, found none"):
        check_labels(labels, [], "raw", "detection", explain)


def test_one_class_is_no_classification():
    one = [record for record in records(100) if record.label == "class1"]
    with pytest.raises(
        DataError,
        match=(
            "two classes or more, found only class1. "
            "Add images of another class, or correct preprocess.source"
        ),
    ):
        check_labels(
            count_planned_labels({"train": one, "validation": one, "test": one}),
            collect_class_names(one),
            "raw",
            "classification",
            explain,
        )


@pytest.mark.parametrize("task, learned", [("detection", "a"), ("classification", "ab")])
def test_a_class_without_examples_does_not_refuse_the_others(task, learned):
    labels = {split: dict.fromkeys(learned, 5) for split in ("train", "validation", "test")}
    labels["test"]["c"] = 1
    check_labels(labels, [*learned, "c", "d"], "raw", task, explain)


def test_a_validation_split_that_nothing_uses_may_be_empty():
    labels = {"train": {"a": 5}, "validation": {}, "test": {"a": 1}}
    check_labels(labels, ["a"], "raw", "detection", explain, splits=("train", "test"))


def test_too_few_classes_with_training_examples_are_named():
    labels = {"train": {"a": 5}, "validation": {"b": 1}, "test": {"a": 1}}
    with pytest.raises(
        DataError,
        match="no training example of b: b has only 1 in validation. .* preprocess.split",
    ):
        check_labels(labels, ["a", "b"], "raw", "classification", explain)
    with pytest.raises(DataError, match="of c: no image of c is left after .* preprocess.stages"):
        check_labels(labels, ["a", "c"], "raw", "classification", explain)


def test_an_empty_split_is_named_with_what_to_do():
    labels = {"train": {"a": 5, "b": 5}, "validation": {}, "test": {"a": 1}}
    with pytest.raises(
        DataError, match="the validation split has no example: it is the validation split"
    ):
        check_labels(labels, ["a", "b"], "raw", "classification", explain)


CROWD = "boxes{} are crowds \\(iscrowd: 1\\), which a detector does not learn from. Set iscrowd"


@pytest.mark.parametrize(
    ("labels", "crowds", "message"),
    [
        ({}, {"train": {"a": 40}, "test": {"b": 8}}, f"raw: 48 of 48 {CROWD.format('')}"),
        (
            {"validation": {"b": 1}, "test": {"a": 1}},
            {"train": {"a": 12}},
            f"no training example of a, b: 12 of 12 {CROWD.format(' of a in train')}",
        ),
        (
            {"train": {"a": 5, "b": 5}, "validation": {"a": 1}},
            {"test": {"a": 1, "b": 2}, "train": {"a": 9}},
            f"the test split has no example: 3 of 3 {CROWD.format('')}",
        ),
        (
            {"validation": {"a": 1, "b": 1}},
            {"test": {"a": 12}},
            "no training example of a, b: a has only 1 in validation",
        ),
    ],
)
def test_crowds_are_no_examples(labels, crowds, message):
    found = {split: labels.get(split, {}) for split in ("train", "validation", "test")}
    with pytest.raises(DataError, match=message):
        check_labels(found, ["a", "b"], "raw", "detection", explain, crowds=crowds)


def test_difficult_boxes_are_examples_and_crowds_are_none():
    boxes = (
        Box(0, 0, 1, 1, "a", is_difficult=True),
        Box(0, 0, 1, 1, "a", is_crowd=True),
        Box(0, 0, 1, 1, "b", is_difficult=True, is_crowd=True),
    )
    planned = {"train": [dataclasses.replace(records(1)[0], label="", boxes=boxes)]}
    assert count_planned_labels(planned) == {"train": {"a": 1}}
    assert count_planned_crowds(planned) == {"train": {"a": 1, "b": 1}}
