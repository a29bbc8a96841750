"""Reading the bytes of one record."""

from __future__ import annotations

import dataclasses
import os
import time

import pytest

from beam_jobs.io.raw import PackedImage, read_beginning, read_raw
from pipeline_ops.errors import MachineError
from pipeline_ops.raw_data.local import list_raw_files
from pipeline_ops.raw_data.raw_file import RawFile, compute_digest
from pipeline_ops.storage.open_store import open_root


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "raw").mkdir()
    return tmp_path / "raw"


@pytest.fixture
def second(folder, tmp_path) -> PackedImage:
    """The second image of a file of two."""
    (folder / "a.record").write_bytes(b"first, second.")
    [container] = list_raw_files(folder, open_root(tmp_path) / "listings").files
    return PackedImage("2", 6, compute_digest(b"second"), container, 7)


def test_a_packed_image_is_read_from_its_place(second, folder):
    assert read_raw(second, folder) == b"second"


def test_equal_images_have_equal_digests_wherever_they_are(second, folder, tmp_path):
    (folder / "b.jpg").write_bytes(b"second")
    assert list_raw_files(folder, open_root(tmp_path) / "listings").files[1].digest == second.digest


@pytest.mark.parametrize(
    "change",
    [
        {"offset": 3},
        {"offset": 0},
        {"offset": 10_000},
        {"column": "label"},
        {"digest": compute_digest(b"other")},
    ],
)
def test_what_is_not_the_image_any_more_is_a_reason_to_retry(second, folder, change):
    with pytest.raises(MachineError, match="2 has changed since the run started. Retry"):
        read_raw(dataclasses.replace(second, **change), folder)


def test_a_file_that_is_gone_is_a_reason_to_retry(second, folder):
    (folder / "a.record").unlink()
    with pytest.raises(MachineError, match="cannot read .*2: No such file or directory"):
        read_raw(second, folder)


@pytest.fixture
def settled(folder, tmp_path):
    """A listed file, as it is two seconds after it was written:
    its version tells of any further write."""
    (folder / "a.jpg").write_bytes(b"content")
    wait_until_settled(folder / "a.jpg")
    [file] = list_raw_files(folder, open_root(tmp_path) / "listings").files
    assert file.version
    return file


def wait_until_settled(path) -> None:
    while time.time_ns() - path.stat().st_ctime_ns < 2_100_000_000:
        time.sleep(0.05)


def test_a_file_that_was_written_to_is_noticed_without_reading_it_twice(settled, folder):
    assert read_raw(dataclasses.replace(settled, digest=0), folder) == b"content"
    mtime_ns = (folder / "a.jpg").stat().st_mtime_ns
    (folder / "a.jpg").write_bytes(b"CONTENT")
    # The mtime can be set back, as cp -p does. The ctime can't.
    os.utime(folder / "a.jpg", ns=(mtime_ns, mtime_ns))
    with pytest.raises(MachineError, match="a.jpg has changed since the run started. Retry"):
        read_raw(settled, folder)


def test_a_file_that_was_only_touched_is_the_same(settled, folder):
    (folder / "a.jpg").touch()
    assert read_raw(settled, folder) == b"content"


def test_of_a_file_that_was_just_written_the_content_is_compared(folder, tmp_path):
    """Within one tick of the kernel's clock, a second write leaves no trace."""
    age_seconds = 2.0
    while age_seconds > 1.9:  # a machine that stood still in between has let the file settle
        (folder / "a.jpg").write_bytes(b"content")
        [file] = list_raw_files(folder, open_root(tmp_path) / "listings").files
        age_seconds = time.time() - (folder / "a.jpg").stat().st_ctime
    assert file.version == ""
    assert read_raw(file, folder) == b"content"
    with pytest.raises(MachineError, match="has changed"):
        read_raw(dataclasses.replace(file, digest=compute_digest(b"other")), folder)


def test_a_file_that_is_gone_when_its_beginning_is_read_is_a_reason_to_retry(tmp_path):
    """The page of a data set shows bad records, whose files are read once more."""
    with pytest.raises(MachineError, match=r"cannot read cat/gone.png: .* Retry"):
        read_beginning(RawFile("cat/gone.png", 1, 0), tmp_path, 3)
