"""The index of a data set."""

from __future__ import annotations

import dataclasses
import gzip

import pytest

from beam_jobs.planning.generations import (
    compute_annotation_digest,
    read_index,
)
from beam_jobs.planning.plan import Record
from beam_jobs.stages.stage import Box
from pipeline_ops.contract.dataset import IndexEntry, write_index
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.raw_file import RawFile

ENTRIES = [
    IndexEntry(
        "cat/2.png",
        "c2",
        "a1",
        "train",
        "train-00000-of-00001.tfrecord",
        4,
        3,
        {"cat": 2, "dog": 1},
        "00ff00ff00ff00ff",
    ),
    IndexEntry("cat/1.png", "c1", "a1", "test"),
    IndexEntry("cat/é\n.png", "c3", "a1", ""),
]
RECORD = Record(RawFile("cat/1.png", 1, 1), "cat", boxes=(Box(0, 0, 1, 1, "cat"),))


def test_an_index_is_read_as_it_was_written(tmp_path):
    write_index(tmp_path / "index", ENTRIES)
    assert read_index(tmp_path / "index") == {entry.key: entry for entry in ENTRIES}
    assert list(read_index(tmp_path / "index")["cat/2.png"].positions) == [4, 5, 6]


def test_equal_entries_are_equal_bytes_in_whatever_order_they_come(tmp_path):
    write_index(tmp_path / "one", ENTRIES)
    write_index(tmp_path / "other", reversed(ENTRIES))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        gzip.compress(b"[1, 2]\n", mtime=0),
        gzip.compress(b'{"key": 1}\n', mtime=0),
        gzip.compress(b'["a"', mtime=0)[:-4],
    ],
)
def test_what_is_no_index_is_told_with_what_to_do(tmp_path, content):
    (tmp_path / "index").write_bytes(content)
    with pytest.raises(
        DataError,
        match="index.* Remove its data set, and start a new run",
    ):
        read_index(tmp_path / "index")


@pytest.mark.parametrize(
    "changes, is_other",
    [
        ({"label": "dog"}, True),
        ({"boxes": None}, True),
        ({"boxes": ()}, True),
        ({"boxes": (Box(0, 0, 1, 2, "cat"),)}, True),
        ({"boxes": (Box(0, 0, 1, 1, "cat", is_difficult=True),)}, True),
        ({"split": "test"}, False),
        ({"group": "g"}, False),
        ({"file": RawFile("cat/1.png", 2, 2)}, False),
    ],
)
def test_an_annotation_is_what_the_source_says_of_the_image(changes, is_other):
    assert (
        compute_annotation_digest(dataclasses.replace(RECORD, **changes))
        != compute_annotation_digest(RECORD)
    ) is is_other
