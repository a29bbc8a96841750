"""Labels from folders."""

from __future__ import annotations

from pathlib import Path

from beam_jobs.sources import read_records
from pipeline_ops.config.sources import ImageFolderSource
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile

SOURCE = ImageFolderSource(type="image_folder", path="raw")


def listing(*keys: str) -> Listing:
    return Listing(Path("raw"), tuple(RawFile(key, 1, 0) for key in keys))


def test_the_first_folder_is_the_label():
    records, rejected, *_ = read_records(
        SOURCE, listing("cat/1.png", "cat/outdoors/2.png", "dog/1.png")
    )
    assert [(record.key, record.label) for record in records] == [
        ("cat/1.png", "cat"),
        ("cat/outdoors/2.png", "cat"),
        ("dog/1.png", "dog"),
    ]
    assert rejected == []


def test_a_file_in_no_class_folder_is_kept_out_and_named():
    records, [rejected], *_ = read_records(SOURCE, listing("cat/1.png", "readme.txt"))
    assert [record.key for record in records] == ["cat/1.png"]
    assert (rejected.key, rejected.stage, rejected.reason) == ("readme.txt", "source", "no_label")
