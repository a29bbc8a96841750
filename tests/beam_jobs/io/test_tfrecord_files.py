"""TFRecord files: the format, and whole or absent."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from beam_jobs.io.tfrecord_files import write_tfrecord
from pipeline_ops.errors import MachineError
from pipeline_ops.storage.checksums import compute_checksums
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.tfrecord import frame_record, unframe_record


def test_a_record_is_framed_as_tensorflow_frames_it():
    """`tf.io.write_tfrecord` wrote these bytes for the record b"abc"."""
    assert (
        b"".join(frame_record(b"abc")).hex()
        == b"".join(frame_record(b"a", b"", b"bc")).hex()
        == "0300000000000000b099490e6162636e57f121"
    )


@pytest.mark.parametrize("position", range(19))
def test_a_changed_byte_of_a_record_is_seen(position):
    framed = bytearray(b"".join(frame_record(b"abc")))
    assert unframe_record(bytes(framed)) == b"abc"
    framed[position] ^= 1
    assert unframe_record(bytes(framed)) is None


def test_a_part_of_a_record_is_not_a_record():
    framed = b"".join(frame_record(b"abc"))
    assert [unframe_record(framed[:end]) for end in range(len(framed))] == [None] * len(framed)


@pytest.mark.parametrize("records", [[], [b""], [b"one", b"", b"three" * 1000]])
def test_what_was_written_is_read(tmp_path: Path, read_records, records):
    with write_tfrecord(open_path(tmp_path / "x.tfrecord")) as writer:
        for record in records:
            writer.write(record)
    assert read_records(tmp_path / "x.tfrecord") == records
    with open(tmp_path / "x.tfrecord", "rb") as file:
        assert writer.file.has_content(compute_checksums(file))
    assert [file.name for file in tmp_path.iterdir()] == ["x.tfrecord"]


def test_an_error_on_the_way_leaves_nothing(tmp_path: Path):
    with pytest.raises(KeyError), write_tfrecord(open_path(tmp_path / "x.tfrecord")) as writer:
        writer.write(b"one")
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_the_name_appears_only_at_the_end(tmp_path: Path):
    with write_tfrecord(open_path(tmp_path / "x.tfrecord")) as writer:
        writer.write(b"one" * (1 << 20))
        assert not (tmp_path / "x.tfrecord").exists()
    assert (tmp_path / "x.tfrecord").exists()


def test_a_folder_that_is_gone_is_a_machine_failure(tmp_path: Path):
    with (
        pytest.raises(MachineError, match="cannot write .*x.tfrecord: no such file"),
        write_tfrecord(open_path(tmp_path / "gone" / "x.tfrecord")),
    ):
        pass


@pytest.mark.parametrize("num_bytes", [10, 5_000_000], ids=["at the end", "on the way"])
def test_a_full_disk_is_a_machine_failure_and_leaves_nothing(tmp_path: Path, num_bytes):
    """A limit on the size of files stands for the full disk, in a process of its own,
    which can't take it back."""
    code = f"""
import pathlib, sys
from beam_jobs.io.tfrecord_files import write_tfrecord
from pipeline_ops.errors import MachineError
from pipeline_ops.storage.open_store import open_path
folder = pathlib.Path(sys.argv[1])
try:
    with write_tfrecord(open_path(folder / "x.tfrecord")) as writer:
        writer.write(bytes({num_bytes}))
except MachineError as error:
    assert "Free disk space or repair the disk, then retry." in str(error), error
else:
    sys.exit("no error")
assert not list(folder.iterdir())
"""
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8)),
    )
