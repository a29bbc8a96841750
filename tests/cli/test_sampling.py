"""The recognition looks at a bounded part of a large data set, and says so."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from beam_jobs.sources import read_records
from beam_jobs.sources.folder_view import view_folder
from beam_jobs.sources.parsing import find_split_of_path as find_split
from pipeline_ops.cli.first_config.data_summary import sample_listing
from pipeline_ops.config.sources import TfrecordSource, VocSource
from pipeline_ops.raw_data.listing import Listing

ANNOTATION = "<annotation><object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object></annotation>"  # noqa: E501


def add(folder: Path, name: str, content: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def view(folder: Path) -> Listing:
    return view_folder(folder).enter("")


def test_of_many_annotation_files_a_part_is_read_with_their_images(tmp_path):
    for index in range(200):
        add(tmp_path, f"JPEGImages/{index}.jpg", "")
        add(tmp_path, f"Annotations/{index}.xml", ANNOTATION)
    add(tmp_path, "ImageSets/Main/train.txt", "\n".join(map(str, range(200))))
    source = VocSource(type="voc", path=str(tmp_path))
    part, factor, [remark] = sample_listing(source, view(tmp_path), max_files=50)
    records, rejected, *_ = read_records(source, part)
    assert 25 < len(records) < 80
    assert rejected == []
    assert len(records) * factor == pytest.approx(200)
    assert remark == (
        f"{len(records)} of 200 annotation files were read, and no lists of splits in ImageSets"
    )
    assert sample_listing(source, part, max_files=100) == (part, 1.0, ())


def test_of_large_tfrecord_files_the_first_of_each_part_are_read(tmp_path):
    for name in ("train-0", "train-1", "train-2", "val-0"):
        add(tmp_path, name, "x" * 100)
    parts = [{"files": "train-*"}, {"files": "val-*"}]
    source = TfrecordSource.model_validate(
        {"type": "tfrecord", "path": str(tmp_path), "task": "detection", "parts": parts}
    )
    part, factor, [remark] = sample_listing(source, view(tmp_path), max_bytes=150)
    assert [file.key for file in part.files] == ["train-0", "val-0"]
    assert factor == 2
    assert remark.startswith("50% of the bytes were read")


def test_the_listing_of_a_folder_with_too_many_files_ends(tmp_path):
    for index in range(9):
        add(tmp_path, f"{index}.jpg", "")
    assert view_folder(tmp_path, max_files=9).is_complete
    part = view_folder(tmp_path, max_files=5)
    assert (len(part.files), part.is_complete) == (5, False)


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("annotations/instances_val2017.json", "validation"),
        ("train/_annotations.coco.json", "train"),
        ("trainval.json", None),
        ("train_and_test.json", None),
        ("boxes.json", None),
        ("evaluation/boxes_train.json", "train"),
        ("animals_dev/boxes.json", "validation"),
        ("contest/valve.json", None),
    ],
)
def test_the_words_of_a_path_name_its_split(path, split):
    assert find_split(path) == split


@pytest.mark.parametrize(
    ("names", "beside", "found"),
    [
        (["1.jpg", "2.jpg"], "labels.csv", ("a", 2)),
        (["1.jpg"], "b/labels.csv", ("b", 1)),
        (["1.jpg"], "labels_b.csv", ("b", 1)),
        (["a/1.jpg"], "labels.csv", (".", 1)),
        (["./a/1.jpg", "a/9.jpg"], "labels.csv", (".", 1)),
        (["/a/1.jpg", "../1.jpg", "", "\ud800.jpg"], "labels.csv", (".", 0)),
    ],
)
def test_the_folder_at_which_paths_start_is_found(tmp_path, names, beside, found):
    for name in ("a/1.jpg", "a/2.jpg", "b/1.jpg"):
        add(tmp_path, name, "")
    assert view_folder(tmp_path).find_images_folder(names, beside) == found


@pytest.mark.parametrize("name", ["U\u0308ber 1.jpg", "a%20b.jpg"])
def test_the_folder_of_an_image_does_not_depend_on_how_its_name_is_written(tmp_path, name):
    add(tmp_path, f"images/{name}", "")
    given = unicodedata.normalize("NFC", name)
    assert view_folder(tmp_path).find_images_folder([given], "labels.csv") == ("images", 1)
    assert view_folder(tmp_path).find_images_folder([f"images/{given}"], "") == (".", 1)
