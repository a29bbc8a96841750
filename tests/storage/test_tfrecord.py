"""Records of a TFRecord file, read without TensorFlow."""

from __future__ import annotations

import pytest

from pipeline_ops.errors import DataError
from pipeline_ops.served.client import RawRecord, pack_raw_record, read_raw_records
from pipeline_ops.storage.tfrecord import FRAME_BYTES, frame_record, read_records


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "records"
    file.write_bytes(b"".join(b"".join(frame_record(data)) for data in (b"one", b"", b"three")))
    return file


def test_every_record_is_read(file):
    assert [*read_records(file)] == [b"one", b"", b"three"]
    file.write_bytes(b"")
    assert [*read_records(file)] == []


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (FRAME_BYTES + 3 + 12, "record at byte 19"),
        (13, "record at byte 0"),
        (9, "record at byte 0"),
    ],
)
def test_a_damaged_record_is_named(file, place, reason):
    """A checksum of a length, the data, and the checksum of the data."""
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        [*read_records(file)]


def test_a_raw_file_that_was_cut_or_changed_is_an_error_with_the_cure(file):
    record = RawRecord("key", b"image", "JPEG", ["key"], [])
    content = b"".join(frame_record(pack_raw_record(record)))
    file.write_bytes(content)
    assert [*read_raw_records([str(file)])] == [record]
    for wrong in (content[:-1], content[:20] + b"\0" + content[21:]):
        file.write_bytes(wrong)
        with pytest.raises(DataError, match=r"records cannot be read: .*Run preprocess again\."):
            [*read_raw_records([str(file)])]
    with pytest.raises(DataError, match="No such file"):
        [*read_raw_records([str(file) + "x"])]
