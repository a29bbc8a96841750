"""Files and folders that are whole or absent, on a disk that may be full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from small_disks import DISK_BYTES

from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage import local_files
from pipeline_ops.storage.local_files import (
    copy_file,
    link_exclusively,
    link_file,
    read_json,
    staging_folder,
    withdraw_folder,
    write_atomically,
    write_json,
)
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.system.locks import exclusive_lock, try_lock


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock `tmp_path/lock`."""
    code = (
        "import sys, time, pathlib\n"
        "from pipeline_ops.system.locks import exclusive_lock\n"
        "with exclusive_lock(pathlib.Path(sys.argv[1]), 'it'):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE
    )
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Files --------------------------------------------------------------------------------------------


def test_a_file_is_written_with_its_folders_and_nothing_beside_it(tmp_path):
    write_atomically(tmp_path / "a" / "b" / "file", b"content")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"content" and names(
        tmp_path / "a" / "b"
    ) == ["file"]


def test_a_reader_never_sees_half_a_file_however_many_threads_write_it(tmp_path):
    file, contents, stop = (
        tmp_path / "file",
        [bytes([65 + i]) * 50_000 for i in range(4)],
        threading.Event(),
    )
    write_atomically(file, contents[0])

    def write(content: bytes) -> None:
        while not stop.is_set():
            write_atomically(file, content)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    seen = {file.read_bytes() for _ in range(200)}
    stop.set()
    for writer in writers:
        writer.join()
    assert seen <= set(contents) and names(tmp_path) == ["file"]


def test_two_hosts_that_create_one_file_do_not_share_a_temporary_file(tmp_path, monkeypatch):
    """Containers on several hosts may have equal process and thread numbers."""
    record = open_path(tmp_path / "record.json")

    def create_first(*names) -> bool:
        if not record.exists():
            monkeypatch.setattr(local_files, "link_exclusively", link_exclusively)
            record.create(b"of the faster one")
        return link_exclusively(*names)

    monkeypatch.setattr(local_files, "link_exclusively", create_first)
    with pytest.raises(FileExistsError):
        record.create(b"of the slower one")
    assert record.read() == b"of the faster one"
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def test_a_full_disk_is_named_and_the_old_file_stays(small_disk):
    write_atomically(small_disk / "file", b"old")
    with pytest.raises(
        MachineError, match=r"cannot write .*/file: no space left on device\. Free disk space"
    ):
        write_atomically(small_disk / "file", b"x" * DISK_BYTES)
    assert (small_disk / "file").read_bytes() == b"old" and names(small_disk) == ["file"]


def test_json_keeps_order_and_letters(tmp_path):
    write_json(tmp_path / "file", {"b": "é", "a": [1.5, None]})
    assert (tmp_path / "file").read_text(
        encoding="utf-8"
    ) == '{\n  "b": "é",\n  "a": [\n    1.5,\n    null\n  ]\n}\n'
    assert read_json(tmp_path / "file") == {"b": "é", "a": [1.5, None]}


def test_json_that_is_not_there_is_none(tmp_path):
    assert read_json(tmp_path / "nothing") is None


def test_a_copy_is_equal_and_never_replaces(tmp_path):
    (tmp_path / "source").write_bytes(os.urandom(3_000_000))
    copy_file(tmp_path / "source", tmp_path / "a" / "copy")
    assert (tmp_path / "a" / "copy").read_bytes() == (tmp_path / "source").read_bytes()
    with pytest.raises(MachineError, match="file exists"):
        copy_file(tmp_path / "source", tmp_path / "a" / "copy")


def test_a_copy_onto_a_full_disk_names_the_target(small_disk, tmp_path):
    (tmp_path / "source").write_bytes(b"x" * 2 * DISK_BYTES)
    with pytest.raises(MachineError, match=r"cannot write .*disk/copy: no space left on device"):
        copy_file(tmp_path / "source", small_disk / "copy")


# Folders ------------------------------------------------------------------------------------------


def test_a_folder_has_its_name_only_when_it_is_whole(tmp_path):
    with staging_folder(tmp_path / "final") as staging:
        (staging / "file").write_text("content")
        assert not (tmp_path / "final").exists()
    assert names(tmp_path) == ["final"] and (tmp_path / "final" / "file").read_text() == "content"


def test_a_folder_that_could_not_be_finished_is_gone(tmp_path):
    with pytest.raises(DataError), staging_folder(tmp_path / "final") as staging:
        (staging / "file").write_text("half")
        raise DataError("no more")
    assert names(tmp_path) == []


def test_an_error_of_the_work_keeps_its_meaning(tmp_path):
    """FileNotFoundError of an input is not a failure of the disk, and FileExistsError not one of
    the final name."""
    with (
        pytest.raises(FileNotFoundError, match="no-such-input"),
        staging_folder(tmp_path / "final"),
    ):
        (tmp_path / "no-such-input").read_bytes()
    with (
        pytest.raises(FileExistsError, match="twice"),
        staging_folder(tmp_path / "final") as staging,
    ):
        (staging / "twice").mkdir()
        (staging / "twice").mkdir()


def test_a_folder_that_is_there_is_not_replaced(tmp_path):
    with (
        pytest.raises(FileExistsError, match="final"),
        staging_folder(tmp_path / "final") as staging,
    ):
        (staging / "file").write_text("second")
        (tmp_path / "final").mkdir()
        (tmp_path / "final" / "file").write_text("first")
    assert (tmp_path / "final" / "file").read_text() == "first" and names(tmp_path) == ["final"]


def test_a_withdrawn_folder_is_replaced_and_keeps_its_other_files_until_then(tmp_path):
    final = tmp_path / "final"
    for content in ("first", "second"):
        with staging_folder(final, "marker") as staging:
            assert not final.exists() or (final / "file").read_text() == "first"
            (staging / "file").write_text(content)
            (staging / "marker").touch()
        assert (names(tmp_path), names(final)) == (["final"], ["file", "marker"])
        assert (final / "file").read_text() == content
        withdraw_folder(final, "marker")
        assert names(final) == ["file"]
    withdraw_folder(final, "marker")  # what is withdrawn already is no fault
    withdraw_folder(tmp_path / "nowhere", "marker")


def test_a_folder_that_was_not_withdrawn_is_not_replaced(tmp_path):
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "marker").touch()
    with pytest.raises(FileExistsError), staging_folder(tmp_path / "final", "marker"):
        pass
    assert (names(tmp_path), names(tmp_path / "final")) == (["final"], ["marker"])


def test_a_failed_writer_leaves_what_was_withdrawn(tmp_path):
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "file").touch()
    with pytest.raises(DataError), staging_folder(tmp_path / "final", "marker"):
        raise DataError("no more")
    assert (names(tmp_path), names(tmp_path / "final")) == (["final"], ["file"])


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    (tmp_path / ".final.999999.staging" / "deep").mkdir(parents=True)
    (tmp_path / ".other.999999.staging").mkdir()
    with staging_folder(tmp_path / "final"):
        pass
    assert names(tmp_path) == [".other.999999.staging", "final"]


def test_a_full_disk_stops_a_publication_with_its_name_and_leaves_nothing(small_disk, tmp_path):
    (tmp_path / "model").write_bytes(b"x" * 2 * DISK_BYTES)
    registry = Registry(small_disk / "models")
    with pytest.raises(
        MachineError,
        match=r"cannot write .*saved_model\.pb: no space left on device\. Free disk space",
    ):
        registry.publish(
            "a", lambda folder, number: copy_file(tmp_path / "model", folder / "saved_model.pb")
        )
    assert registry.list_versions() == [] and names(registry.location) == [".publish.lock"]


def test_a_disk_that_is_full_for_any_writer_is_a_machine_failure(small_disk):
    with (
        pytest.raises(MachineError, match="cannot write .*final: no space left on device"),
        staging_folder(small_disk / "final") as staging,
    ):
        (staging / "shard").write_bytes(b"x" * 2 * DISK_BYTES)
    assert names(small_disk) == []


# Locks --------------------------------------------------------------------------------------------


def test_a_holder_that_has_not_written_its_pid_yet_is_another_process(tmp_path):
    with open(tmp_path / "lock", "w") as file:
        assert try_lock(file.fileno())
        with (
            pytest.raises(MachineError, match="the data is held by another process "),
            exclusive_lock(tmp_path / "lock", "the data"),
        ):
            pass


def test_who_is_refused_is_told_by_whom(tmp_path, holder):
    with (
        pytest.raises(MachineError, match=f"the data is held by process {holder.pid} "),
        exclusive_lock(tmp_path / "lock", "the data"),
    ):
        pass


def test_the_lock_of_a_killed_process_is_free(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with exclusive_lock(tmp_path / "lock", "the data"):
        assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_who_waits_gets_the_lock_when_it_is_free(tmp_path, holder):
    start = time.monotonic()
    threading.Timer(0.3, holder.kill).start()
    with exclusive_lock(tmp_path / "lock", "the data", wait_seconds=120):
        assert 0.3 <= time.monotonic() - start < 60


def test_who_waits_in_vain_is_refused_in_time(tmp_path, holder):
    start = time.monotonic()
    with (
        pytest.raises(MachineError, match="Wait for that process, or end it"),
        exclusive_lock(tmp_path / "lock", "the data", wait_seconds=0.3),
    ):
        pass
    assert 0.3 <= time.monotonic() - start < 60


def test_an_error_in_the_block_frees_the_lock(tmp_path):
    for _ in range(2):
        with pytest.raises(DataError), exclusive_lock(tmp_path / "lock", "the data"):
            raise DataError("no more")


# Links --------------------------------------------------------------------------------------------


def test_a_linked_file_is_the_same_file(tmp_path):
    (tmp_path / "shard").write_bytes(b"1")
    link_file(tmp_path / "shard", tmp_path / "other")
    assert (tmp_path / "shard").stat().st_ino == (tmp_path / "other").stat().st_ino


def test_a_file_of_another_disk_is_copied(small_disk, tmp_path):
    (tmp_path / "shard").write_bytes(b"1")
    link_file(tmp_path / "shard", small_disk / "other")
    assert (small_disk / "other").read_bytes() == b"1"


def test_a_copy_for_which_there_is_no_room_is_a_machine_failure(small_disk, tmp_path):
    (tmp_path / "shard").write_bytes(b"x" * 2 * DISK_BYTES)
    with pytest.raises(MachineError, match="cannot write .*other: no space left on device"):
        link_file(tmp_path / "shard", small_disk / "other")
