"""Which record goes into which split."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from beam_jobs.planning.plan import Record
from beam_jobs.planning.splits import assign_split, split_records
from beam_jobs.stages.stage import Box
from pipeline_ops.config.preprocess import Split
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.raw_file import RawFile

SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
PLAIN = Split(**SHARES, seed=7)
STRATIFIED = Split(**SHARES, seed=7, stratify=True)
BY_FOLDER = Split(**SHARES, seed=7, group_by="parent_folder")


def record(key: str, label: str = "a", **keys) -> Record:
    return Record(RawFile(key, 1, 0), label, **keys)


def records(count: int) -> list[Record]:
    return [record(f"class{index % 3}/{index}.png", f"class{index % 3}") for index in range(count)]


def splits(records, split: Split) -> dict[str, str]:
    """By key."""
    return {
        record.key: name
        for name, members in split_records(records, split).items()
        for record in members
    }


@pytest.mark.parametrize("split", [PLAIN, STRATIFIED])
def test_every_record_is_in_exactly_one_split_whatever_the_order(split):
    shuffled = records(500)
    random.Random(1).shuffle(shuffled)
    assert splits(shuffled, split) == splits(records(500), split)
    assert sum(map(len, split_records(shuffled, split).values())) == 500


def test_a_record_stays_in_its_split_when_others_come():
    many = splits(records(3000), PLAIN)
    assert all(many[key] == name for key, name in splits(records(300), PLAIN).items())


def test_a_key_keeps_its_split_over_versions_of_this_code():
    """Written down once: a change here moves test examples into the training of everybody."""
    found = [assign_split(f"cat/{index}.png", PLAIN) for index in range(24)]
    assert [index for index, split in enumerate(found) if split == "validation"] == [1, 6, 10, 20]
    assert [index for index, split in enumerate(found) if split == "test"] == [4, 5, 7, 16, 17]
    assert [
        splits([record(f"cat/{index}.png")], PLAIN)[f"cat/{index}.png"] for index in range(24)
    ] == found


def test_splits_have_about_their_shares():
    sizes = Counter(splits(records(10_000), PLAIN).values())
    assert sizes == pytest.approx({"train": 8000, "validation": 1000, "test": 1000}, rel=0.1)


def test_another_seed_gives_other_splits():
    assert splits(records(300), PLAIN) != splits(records(300), Split(**SHARES, seed=8))


@pytest.mark.parametrize(
    "split, label", [(BY_FOLDER, ""), (BY_FOLDER.model_copy(update={"stratify": True}), "")]
)
def test_a_folder_is_never_torn_apart(split, label):
    found = splits([record(f"cat/{index % 40}/{index}.png") for index in range(1000)], split)
    by_folder = {}
    for key, name in found.items():
        by_folder.setdefault(key.rpartition("/")[0], set()).add(name)
    assert all(len(names) == 1 for names in by_folder.values())
    assert {name for names in by_folder.values() for name in names} == {
        "train",
        "validation",
        "test",
    }


def test_a_group_is_what_the_brackets_of_the_regex_find():
    split = Split(**SHARES, seed=7, group_by="regex", group_regex=r"(patient\d+)_")
    found = splits(
        [
            record(f"{label}/patient{index % 30}_{index}.png", label)
            for label in ("a", "b")
            for index in range(300)
        ],
        split,
    )
    by_patient = {}
    for key, name in found.items():
        by_patient.setdefault(key.split("/")[1].split("_")[0], set()).add(name)
    assert len(by_patient) == 30
    assert all(len(names) == 1 for names in by_patient.values())


def test_a_key_without_a_group_is_named():
    split = Split(**SHARES, group_by="regex", group_regex=r"(patient\d+)_")
    with pytest.raises(
        DataError, match=r"^cat/7.png: preprocess.split.group_regex .* finds no group in this key"
    ):
        split_records([record("cat/patient1_1.png"), record("cat/7.png")], split)


def test_a_group_of_the_source_comes_before_the_folder():
    found = splits(
        [record(f"cat/{index}.png", group=f"scene{index % 20}") for index in range(400)], BY_FOLDER
    )
    assert all(
        len({found[f"cat/{index}.png"] for index in range(scene, 400, 20)}) == 1
        for scene in range(20)
    )
    assert len(set(found.values())) == 3


@pytest.mark.parametrize("counts", [{"a": 10, "b": 1000}, {"a": 17, "b": 33, "c": 5}])
def test_stratified_shares_hold_for_each_class_within_one_record(counts):
    every = [
        record(f"{label}/{index}.png", label)
        for label, count in counts.items()
        for index in range(count)
    ]
    for name, members in split_records(every, STRATIFIED).items():
        found = Counter(member.label for member in members)
        for label, count in counts.items():
            assert abs(found[label] - SHARES[name] * count) <= 1


@pytest.mark.parametrize(
    "sizes, expected",
    [
        ([3] * 60, {"train": 144, "validation": 18, "test": 18}),
        ([4] * 25, {"train": 80, "validation": 10, "test": 10}),
        ([1] * 10 + [2] * 45, {"train": 80, "validation": 10, "test": 10}),
        ([1] * 9 + [3] * 2, {"train": 11, "validation": 2, "test": 2}),
        ([100, 7, 7, 6], {"train": 96, "validation": 12, "test": 12}),
    ],
)
def test_the_remainders_of_the_shares_are_carried_over_all_classes(sizes, expected):
    every = [
        record(f"c{label}/{index}.png", f"c{label}")
        for label, size in enumerate(sizes)
        for index in range(size)
    ]
    found = split_records(every, STRATIFIED)
    assert {name: len(members) for name, members in found.items()} == expected
    assert len({member.label for member in found["train"]}) == len(sizes)
    counts = Counter(member.label for name in ("validation", "test") for member in found[name])
    assert all(counts[f"c{label}"] <= 0.2 * size + 1.5 for label, size in enumerate(sizes))


def test_a_record_that_comes_moves_a_few_others_however_many_classes_there_are():
    every = [
        record(f"c{label}/{index}.png", f"c{label}") for label in range(200) for index in range(3)
    ]
    before = splits(every, STRATIFIED)
    for label in ("c7", "c150", "new"):
        after = splits([*every, record(f"{label}/more.png", label)], STRATIFIED)
        assert sum(after[key] != name for key, name in before.items()) <= 5


def test_the_only_image_with_a_class_stays_in_train_whatever_else_it_shows():
    rare = (Box(0, 0, 1, 1, "common"), Box(0, 0, 2, 2, "common"), Box(0, 0, 1, 1, "rare"))
    every = [record(f"{index}.png", "", boxes=rare[:2]) for index in range(30)]
    for seed in range(20):
        split = STRATIFIED.model_copy(update={"seed": seed})
        assert splits([*every, record("rare.png", "", boxes=rare)], split)["rare.png"] == "train"


@pytest.mark.parametrize("count", [10, 100, 999])
def test_a_record_that_comes_moves_at_most_one_other_at_each_cut(count):
    few, many = (splits(records(3 * size), STRATIFIED) for size in (count, count + 1))
    moved = Counter(key.split("/")[0] for key, name in few.items() if many[key] != name)
    assert all(number <= 2 for number in moved.values())


def test_images_with_boxes_are_stratified_by_their_most_frequent_class():
    def boxes(label):
        return (Box(0, 0, 1, 1, label), Box(0, 0, 2, 2, label), Box(0, 0, 1, 1, "z"))

    every = [
        record(f"{index}.png", "", boxes=boxes("rare" if index % 10 == 0 else "common"))
        for index in range(200)
    ]
    every.append(record("empty.png", "", boxes=()))
    for name, members in split_records(every, STRATIFIED).items():
        assert (
            abs(
                sum(bool(member.boxes) and member.boxes[0].label == "rare" for member in members)
                - SHARES[name] * 20
            )
            <= 1
        )


def test_a_given_split_wins_and_takes_its_group_along():
    every = [
        record("cat/1/a.png", split="test"),
        record("cat/1/b.png"),
        record("cat/2/a.png", split="validation"),
    ]
    for split in (BY_FOLDER, BY_FOLDER.model_copy(update={"stratify": True})):
        assert splits(every, split) == {
            "cat/1/a.png": "test",
            "cat/1/b.png": "test",
            "cat/2/a.png": "validation",
        }


def test_a_group_with_two_given_splits_is_refused():
    every = [record("cat/1/a.png", split="test"), record("cat/1/b.png", split="train")]
    with pytest.raises(
        DataError,
        match=(
            "cat/1/a.png is given the split test and cat/1/b.png the split train, "
            "but both are of the group cat/1"
        ),
    ):
        split_records(every, BY_FOLDER)


def test_a_given_split_that_there_is_not_is_named():
    with pytest.raises(
        DataError,
        match=(
            "cat/1.png: the source gives it the split 'trainval', "
            "splits are train, validation, test"
        ),
    ):
        split_records([record("cat/1.png", split="trainval")], PLAIN)


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"group_by": "regex"}, "need each other"),
        ({"group_regex": "(a)"}, "need each other"),
        ({"group_by": "regex", "group_regex": "a("}, "one pair of brackets"),
        ({"group_by": "regex", "group_regex": "abc"}, "with 0"),
    ],
)
def test_a_regex_that_names_no_group_is_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        Split(**SHARES, **keys)


@pytest.mark.parametrize("stratify", [False, True])
@pytest.mark.parametrize("train", [0.98, 0.7, 0.9999])
def test_a_share_of_0_is_none_whatever_the_others_add_up_to(train, stratify):
    split = Split(train=train, validation=1 - train, test=0.0, seed=7, stratify=stratify)
    assert set(splits(records(3000), split).values()) <= {"train", "validation"}
