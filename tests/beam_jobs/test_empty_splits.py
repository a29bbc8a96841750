"""An empty split is named with its real cause."""

from __future__ import annotations

import pytest

from beam_jobs.planning.plan import Record
from beam_jobs.planning.splits import explain_from_plan, explain_from_shards, split_records
from beam_jobs.statistics.summary import ShardSummary
from pipeline_ops.config.preprocess import Split
from pipeline_ops.contract.dataset import SPLITS, RejectedRecord
from pipeline_ops.errors import ExitCode
from pipeline_ops.raw_data.raw_file import RawFile

NONE = {split: [] for split in SPLITS}


def records(count: int, **keys) -> list[Record]:
    return [
        Record(RawFile(f"{index % 2}/{index}.png", 1, index), f"{index % 2}", **keys)
        for index in range(count)
    ]


def split(**options) -> Split:
    return Split(**{"train": 0.8, "validation": 0.1, "test": 0.1} | options)


@pytest.mark.parametrize(
    "found, options, message",
    [
        (
            records(12),
            {"seed": 2},
            "preprocess.split.test is 0.1 of 12 images. Add images, or raise "
            "preprocess.split.test, or set preprocess.split.stratify: true",
        ),
        (
            records(4),
            {"stratify": True},
            "preprocess.split.test is 0.1 of 4 images, which rounds to none. Add images, or raise",
        ),
        (
            records(2),
            {"stratify": True, "train": 0.4, "validation": 0.1, "test": 0.5},
            "is 0.5 of 2 images, and the first image of each class stays in train. Add images",
        ),
        (
            records(9),
            {"group_by": "parent_folder"},
            "is 0.1 of 9 images, and groups (preprocess.split.group_by: parent_folder) are never "
            "divided",
        ),
        (
            records(9),
            {"train": 0.9, "test": 0.0},
            "preprocess.split.test is 0, and the source gives no image to it. Raise it",
        ),
        (
            records(9, split="train"),
            {"train": 0.9, "test": 0.0},
            "the source gives every image a split (train), none of them test, and "
            "preprocess.split.test is 0. Give some images to it in the source, or raise",
        ),
    ],
)
def test_the_cause_of_a_split_that_is_empty_in_the_plan(found, options, message):
    assert message in explain_from_plan(found, NONE, split(**options), "test")


def test_removed_duplicates_and_unusable_boxes_are_causes(record_property):
    given = records(4, split="test")
    assert explain_from_plan(given, NONE, split(), "test").startswith(
        "all of its 4 images are equal to others or contradict them. Add other images"
    )
    assert explain_from_plan(given, NONE | {"test": given}, split(), "test").startswith(
        "none of its 4 images has a label or a box that the stages keep"
    )


def test_what_the_stages_kept_out_is_counted_by_its_reasons():
    planned = {"test": records(3)}
    rejected = [
        RejectedRecord(key="0/0.png", stage="decode", reason="damaged"),
        RejectedRecord(key="9/9.png", stage="decode", reason="large"),
    ]
    summaries = [
        ShardSummary(
            split="test",
            name="s",
            num_examples=0,
            labels={},
            shapes=[],
            rejected=[],
            skipped={"filter: class": 2},
            nanoseconds={},
        )
    ]
    assert explain_from_shards(planned, rejected, summaries, "test") == (
        "all of its 3 images were rejected or skipped (1 by decode: damaged, 2 by filter: class). "
        "Correct them, or the stages."
    )
    assert "the stages keep no box of its 3 images" in explain_from_shards(planned, [], [], "test")


def test_the_job_says_that_all_images_of_a_split_are_damaged(animals):
    """The split is that of the key, so the test spoils the images that the real code puts there."""
    names = [str(path.relative_to(animals.raw)) for path in animals.raw.rglob("*.png")]
    tests = split_records(
        [Record(RawFile(name, 1, 0)) for name in names],
        split(train=0.6, validation=0.2, test=0.2, seed=3),
    )["test"]
    for record in tests:
        (animals.raw / record.key).write_bytes(f"no image {record.key}".encode())
    outcome = animals.run(rejects={"max_count": len(tests)})
    assert outcome.exit_code is ExitCode.DATA
    assert (
        f"the test split has no example: all of its {len(tests)} images were rejected or skipped "
        f"({len(tests)} by decode: " in outcome.message
    )


@pytest.mark.parametrize(
    "given, missing",
    [({"train", "validation"}, "test"), ({"train", "test"}, "validation"), ({"train"}, "test")],
)
def test_a_split_that_the_source_gives_nothing_is_cut_out_of_train(given, missing):
    found = [
        Record(RawFile(f"{index}.png", 1, 0), "a", split=sorted(given)[index % len(given)])
        for index in range(3000)
    ]
    divided = split_records(found, split())
    train = sum(record.split == "train" for record in found)
    assert len(divided[missing]) == pytest.approx(
        train * 0.1 / (0.1 + 0.8 + (0.1 if given == {"train"} else 0)), rel=0.2
    )
    assert {record.split for record in divided[missing]} == {"train"}
    assert all(record.split == name for name in given - {"train"} for record in divided[name])


def test_one_record_without_a_split_leaves_the_given_ones_alone():
    found = [*records(50, split="train"), Record(RawFile("new.png", 1, 0), "0")]
    assert {record.split for record in split_records(found, split())["train"]} >= {"train"}
    assert (
        sum(
            len(members)
            for name, members in split_records(found, split()).items()
            if name != "train"
        )
        <= 1
    )
