"""Folders that do not mean what they seem to: read as splits, or refused with the cause and the
cure.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from beam_jobs.sources import read_records
from beam_jobs.sources.image_folder import check_layout
from beam_jobs.sources.parsing import find_split, find_split_names
from pipeline_ops.config.sources import ImageFolderSource
from pipeline_ops.errors import DataError, ExitCode
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile


def source(**options) -> ImageFolderSource:
    return ImageFolderSource(type="image_folder", path="raw", **options)


def listing(*keys: str) -> Listing:
    return Listing(Path("raw"), tuple(RawFile(key, 1, 0) for key in keys))


def found(files: Listing, **options) -> list[tuple[str, str | None]]:
    return [
        (record.label, record.split) for record in read_records(source(**options), files).records
    ]


SPLITS = listing("test/dog/4.png", "train/cat/1.png", "train/dog/old/2.png", "val/cat/3.png")


@pytest.mark.parametrize("validation", ["val", "valid", "validation", "Val"])
def test_folders_of_splits_are_splits_and_the_ones_below_are_the_classes(validation):
    """Walk stumble 6: they were the classes "train" and "val"."""
    files = listing("test/dog/4.png", "train/cat/1.png", f"{validation}/cat/3.png")
    check_layout(source(), files)
    assert sorted(found(files)) == [("cat", "train"), ("cat", "validation"), ("dog", "test")]


@pytest.mark.parametrize(
    "name, split",
    [
        ("training_set", "train"),
        ("TRAIN-set", "train"),
        ("trainImages", "train"),
        ("train2017", "train"),
        ("animals_train", "train"),
        ("2019 valset", "validation"),
        ("dev", "validation"),
        ("Evaluation.v2", "validation"),
        ("test_set", "test"),
        ("holdout", "test"),
        ("trainer", None),
        ("contest", None),
        ("valve", None),
        ("evaluator", None),
        ("Kontrain", None),
        ("\u00e9train", None),
        ("e\u0301train", None),  # the same in NFD
        ("train_and_test", None),
        ("trainval", None),
        ("not_test", None),
        ("", None),
    ],
)
def test_a_split_is_a_whole_word_of_a_name(name, split):
    assert find_split(name) == split


@pytest.mark.parametrize(
    "folders, found",
    [
        ("training_set test_set", "train test"),
        ("train2017 val2017 test", "train validation test"),
        ("cats_train dogs_train cats_val", "train train validation"),
        ("train_a train_b holdout", "train train test"),
        ("steam_train test_tube", ""),
        ("train test_tube bus", ""),
        ("train training", ""),
        ("val test", ""),
    ],
)
def test_folders_are_of_splits_if_only_the_word_of_the_split_differs(folders, found):
    names = folders.split()
    splits = find_split_names(names)
    assert splits == (dict(zip(names, found.split(), strict=True)) if found else {})


@pytest.mark.parametrize(
    "files, expected",
    [
        (
            listing("a_train/a_train/cat/1.png", "a_test/cat/3.png", "a_train/a_train/dog/2.png"),
            [("cat", "test"), ("cat", "train"), ("dog", "train")],
        ),
        (
            listing("root/data/Train/cat/1.png", "root/data/DEV/cat/2.png", "root/about.txt"),
            [("cat", "validation"), ("cat", "train")],
        ),
        (
            listing("cat/train/1.png", "cat/test/2.png", "dog/train/3.png"),
            [("cat", "test"), ("cat", "train"), ("dog", "train")],
        ),
        (
            listing("train/train/1.png", "train/bus/2.png", "val/train/3.png"),
            [("bus", "train"), ("train", "train"), ("train", "validation")],
        ),
        (
            listing("train/cat/a/1.png", "train/dog/b/2.png", "val/cat/3.png"),
            [("cat", "train"), ("dog", "train"), ("cat", "validation")],
        ),
    ],
    ids=["an archive", "a folder around", "in the classes", "a class named train", "parts"],
)
def test_folders_of_splits_lie_at_one_depth_and_only_folders_are_looked_through(files, expected):
    check_layout(source(), files)
    assert found(files) == expected


def test_labels_in_two_forms_of_unicode_are_one():
    files = listing("train/\u00d6l/1.png", "val/O\u0308l/2.png")
    assert found(files) == [("\u00d6l", "train"), ("\u00d6l", "validation")]


def test_a_file_beside_the_class_folders_of_a_split_is_kept_out():
    files = listing("notes.txt", "train/cat/1.png", "train/readme.txt", "val/cat/2.png")
    check_layout(source(), files)
    assert [rejected.key for rejected in read_records(source(), files).rejected] == [
        "notes.txt",
        "train/readme.txt",
    ]


def test_the_config_decides_where_folders_can_be_meant_in_both_ways():
    assert found(SPLITS, class_folder="outer") == [
        ("test", None),
        ("train", None),
        ("train", None),
        ("val", None),
    ]
    assert found(SPLITS, class_folder="inner") == [
        ("dog", "test"),
        ("cat", "train"),
        ("old", "train"),
        ("cat", "validation"),
    ]
    hospitals = listing(
        "a/benign/1.png", "a/malignant/2.png", "b/benign/3.png", "b/malignant/4.png"
    )
    assert found(hospitals, class_folder="inner") == [
        (label, None) for label in ("benign", "malignant") * 2
    ]


@pytest.mark.parametrize(
    "files",
    [
        listing("bus/1.png", "car/1.png", "train/1.png"),  # a class named train
        listing("cat/1.png", "cat/outdoors/2.png", "dog/1.png"),
        listing("cat/a/1.png", "cat/b/2.png", "dog/1.png"),
        listing("cat/only/1.png", "dog/only/2.png"),
    ],
    ids=["a class named train", "a class with a folder", "one class with two", "one folder each"],
)
def test_class_folders_stay_class_folders(files):
    check_layout(source(), files)
    assert {split for _, split in found(files)} == {None}


def test_inner_folders_may_be_groups():
    files = listing("cat/a/1.png", "cat/b/2.png", "dog/a/3.png", "dog/b/4.png")
    check_layout(source(), files, has_groups=True)
    check_layout(source(class_folder="outer"), files)
    assert [label for label, _ in found(files)] == ["cat", "cat", "dog", "dog"]


@pytest.mark.parametrize(
    "files, message",
    [
        (
            listing("1.png", "2.png"),
            "raw: its 2 files lie in no folder. Put the images of each class into a folder with "
            "the name of the class, or",
        ),
        (
            listing("set/cat/1.png", "set/dog/2.png"),
            "raw: the only folder in it is set, which has the folders cat, dog. Set "
            "preprocess.source.path to raw/set",
        ),
        (
            listing("a/cat/1.png", "a/dog/2.png", "b/cat/3.png", "b/dog/4.png"),
            "raw: no image lies directly in one of its folders a, b. a has the folders cat, dog. "
            "If those are the classes, set preprocess.source.path "
            "to raw/a, or preprocess.source.class_folder: inner, or set "
            "preprocess.source.class_folder: outer",
        ),
        (
            listing("dog/1.png", "train/cat/1.png", "val/cat/2.png"),
            "raw: has folders of splits (train, val) and other folders (dog). "
            "Move the other folders away, or set",
        ),
        (
            listing("train/cat/1.png", "train_gray/cat/2.png", "val/cat/3.png"),
            "raw: train, train_gray may all be the split train, or parts or copies of it. "
            "Keep one of them, or set preprocess.source.class_folder: outer",
        ),
        (
            listing("train/train/cat/1.png", "test/test/2.png"),
            "raw/test: a folder of a split needs class folders",
        ),
        (
            listing("train/1.png", "val/2.png"),
            "raw/train: a folder of a split needs class folders. Put its images into one "
            "folder per class",
        ),
        (
            listing("test/1.png", "train/cat/2.png"),
            "raw/test: a folder of a split needs class folders",
        ),
    ],
)
def test_other_folders_are_refused_with_the_cause_and_the_cure(files, message):
    with pytest.raises(DataError) as refused:
        check_layout(source(), files)
    assert message in str(refused.value)


def test_a_data_set_of_train_and_val_has_a_test_split_that_is_cut_out_of_train(pipeline, encode):
    for index in range(60):
        pipeline.add(
            f"{'val' if index % 6 == 0 else 'train'}/{'cat' if index % 2 else 'dog'}/{index}.png",
            encode(seed=index),
        )
    for index in range(60, 66):
        pipeline.add(f"val/{'cat' if index % 2 else 'dog'}/{index}.png", encode(seed=index))
    outcome = pipeline.run(shards=1, split__stratify=True)
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    figures = outcome.manifest.figures
    assert figures["class_names"] == ["cat", "dog"]
    assert figures["num_examples"] == {
        "train": 37,
        "validation": 16,
        "test": 13,
    }  # a quarter of train, as 0.6 to 0.2


@pytest.mark.parametrize(
    "keys, message",
    [
        ([], "there are no files. Put a folder with the images of each class there"),
        (["1.png", "2.png"], "its 2 files lie in no folder"),
        (["set/cat/1.png", "set/dog/2.png"], "Set preprocess.source.path to "),
    ],
)
def test_the_job_says_so_before_it_reads_an_image(pipeline, keys, message):
    for key in keys:
        pipeline.add(key, key.encode())
    outcome = pipeline.run()
    assert (outcome.exit_code, message in outcome.message) == (ExitCode.DATA, True), outcome.message
    assert Counter(moment.phase for moment in outcome.progress).keys() == {"list"}
