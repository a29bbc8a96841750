"""The promises of a store, on a folder, an S3 server, an emulator of Google's store and Azurite."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import pytest

from pipeline_ops.errors import ConfigError, DataError, MachineError
from pipeline_ops.storage.checksums import compute_checksums
from pipeline_ops.storage.local_files import UnsafePath
from pipeline_ops.storage.object_store import SEGMENT_BYTES, ObjectPath
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.storage.request_cache import cache_requests
from pipeline_ops.storage.store_options import StoreOptions
from pipeline_ops.storage.store_path import BLOCK_BYTES, StorePath, read_usage
from pipeline_ops.system import lease as lease_module
from pipeline_ops.system.lease import hold_lease
from pipeline_ops.system.locks import ResourceHeld
from pipeline_ops.system.processes import ProcessIdentity

NAMES = ("a.json", "manual__2026-11-22T00:00:00+00:00", "with space", "ä", "%2Ex", "a=b,c@d")
"""Names of files that a run id or a raw file can bring along."""


@pytest.fixture
def root(store_root) -> StorePath:
    return open_root(store_root.uri)


class TestStore:
    """Each row holds on each kind of store."""

    @pytest.mark.parametrize("name", NAMES)
    def test_a_file_reads_back(self, root, name):
        file = root / "folder" / name
        file.write(b"first")
        file.write(b"second")
        assert (file.read(), file.exists()) == (b"second", True)
        assert [entry.name for entry in root.walk()] == [f"folder/{name}"]
        assert open_path(str(file)).read() == b"second"

    @pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 1])
    def test_a_file_of_any_size_comes_back_as_it_was(self, root, tmp_path, size):
        source, target = tmp_path / "source", tmp_path / "target"
        source.write_bytes(os.urandom(size))
        (root / "big").upload(source)
        with open(source, "rb") as file:
            assert (root / "big").download(target, size) == compute_checksums(file)
        assert b"".join((root / "big").read_blocks()) == source.read_bytes()
        with (root / "big").open(size) as file:
            assert file.read() == source.read_bytes()

    def test_a_file_that_is_longer_than_listed_does_not_fill_the_disk(self, root, tmp_path):
        (root / "big").write(bytes(9 * BLOCK_BYTES))
        found = (root / "big").download(tmp_path / "target", 10)
        assert 10 < found.num_bytes == (tmp_path / "target").stat().st_size <= 2 * BLOCK_BYTES

    def test_a_missing_file_is_missing(self, root, tmp_path):
        missing = root / "no" / "file"
        assert (missing.exists(), missing.stat()) == (False, None)
        assert (missing.list_folder(), missing.walk(), missing.find_in_folders("x")) == ([], [], [])
        for read in (missing.read, lambda: missing.download(tmp_path / "x", 1)):
            with pytest.raises(FileNotFoundError):
                read()
        missing.remove()
        missing.remove_tree()

    def test_a_file_that_is_too_large_is_refused(self, root):
        (root / "file").write(b"12345")
        assert (root / "file").read(5) == b"12345"
        with pytest.raises(UnsafePath, match="At most 4"):
            (root / "file").read(4)

    @pytest.mark.parametrize("key", ["../x", "/x", "a/../b", "a//b", "a\\b", "a\x00b"])
    def test_a_path_that_leaves_the_root_is_refused(self, root, key):
        with pytest.raises(UnsafePath):
            (root / key).write(b"")

    def test_ranges_end_with_the_file(self, root):
        (root / "file").write(b"0123456789")
        ranges = [(0, 3), (8, 5), (10, 5), (20, 5), (3, 0)]
        found = [(root / "file").read_range(*each) for each in ranges]
        assert found == [b"012", b"89", b"", b"", b""]

    def test_of_many_creators_one_is_first(self, root):
        barrier = threading.Barrier(4)

        def create(number: int) -> bool:
            barrier.wait()
            try:
                (root / "once").create(b"%d" % number)
            except FileExistsError:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            created = list(pool.map(create, range(4)))
        assert created.count(True) == 1
        assert (root / "once").read() == b"%d" % created.index(True)

    def test_folders_are_listed_by_name(self, root):
        for name in ("b/1", "b/2/3", "a", "c/manifest.json", "d/manifest.json"):
            (root / "top" / name).write(b"x" * len(name))
        found = [(each.name, each.is_folder) for each in (root / "top").list_folder()]
        assert found == [("a", False), ("b", True), ("c", True), ("d", True)]
        assert [each.name for each in (root / "top" / "b").walk()] == ["1", "2/3"]
        manifests = (root / "top").find_in_folders("manifest.json")
        assert sorted(each.name for each in manifests) == ["c/manifest.json", "d/manifest.json"]
        assert {each.num_bytes for each in manifests} == {15}

    def test_a_removed_folder_is_gone_and_its_neighbour_is_not(self, root):
        (root / "ab" / "x").write(b"")
        (root / "a" / "x").write(b"")
        (root / "a" / "y" / "z").write(b"")
        (root / "a").remove_tree()
        assert [each.name for each in root.walk()] == ["ab/x"]

    def test_a_log_grows_and_is_read_from_any_place(self, root):
        written, log = b"", root / "job.log"
        writer = log.open_log()
        for number in range(6):
            line = b"%d" % number * (SEGMENT_BYTES // 2) + b"\n"
            writer.append(line)
            written += line
            if number == 2:
                writer = log.open_log()  # as after a restart
            assert writer.size == len(written)
            assert log.read_log_end(10) == (len(written) - 10, written[-10:])
        middle = len(written) // 2
        assert log.read_log(0, len(written)) == written
        assert log.read_log(middle, 1000) == written[middle : middle + 1000]
        assert log.read_log(len(written), 1000) == b""
        assert (root / "none").read_log_end(10) == (0, b"")

    def test_a_lease_has_one_holder(self, root):
        with hold_lease(root / "lock", "the thing"):
            refused = pytest.raises(MachineError, match=rf"is held by process {os.getpid()}")
            with refused, hold_lease(root / "lock", "the thing"):
                pass
        with hold_lease(root / "lock", "the thing") as lease:
            lease.commit(root / "result", b"done")
        assert (root / "result").read() == b"done"
        with hold_lease(root / "lock", "the thing"):
            pass


class TestBucket:
    """Promises that only a bucket has to keep."""

    @pytest.fixture
    def bucket(self, bucket_root) -> StorePath:
        return open_root(bucket_root.uri)

    def test_a_holder_without_a_beat_loses_its_lease_and_cannot_commit(self, bucket, monkeypatch):
        monkeypatch.setattr(lease_module, "LEASE_SECONDS", 0.5)
        monkeypatch.setattr(lease_module, "_BEAT_SECONDS", 60.0)
        with hold_lease(bucket / "lock", "the thing") as paused:
            monkeypatch.setattr(lease_module, "get_pid_space", lambda: "another machine")
            with hold_lease(bucket / "lock", "the thing", wait_seconds=30) as other:
                assert other.token > paused.token
                with pytest.raises(MachineError, match="another one has taken over"):
                    paused.commit(bucket / "result", b"late")
                other.commit(bucket / "result", b"done")
        assert (bucket / "result").read() == b"done"

    def test_a_holder_in_another_container_of_the_same_name_is_not_taken_for_dead(
        self, bucket, monkeypatch
    ):
        gone = subprocess.Popen(["true"])
        identity = ProcessIdentity.from_pid(gone.pid)
        gone.wait()
        record = {"state": "held", "holder": identity.to_json(), "nonce": "0"}
        content = json.dumps(record | {"pid_space": "another container"})
        (bucket / "lock" / "00000001.json").create(content.encode())
        with pytest.raises(ResourceHeld), hold_lease(bucket / "lock", "the thing"):
            pass
        monkeypatch.setattr(lease_module, "get_pid_space", lambda: "another container")
        with hold_lease(bucket / "lock", "the thing") as lease:
            assert lease.token == 2

    def test_a_record_with_the_highest_number_is_an_error_and_no_endless_wait(self, bucket):
        """N7."""
        with hold_lease(bucket / "lock", "the thing"):
            content = (bucket / "lock" / "00000001.json").read(1 << 20)
        (bucket / "lock" / "99999999.json").create(content.replace(b'"held"', b'"released"'))
        highest = pytest.raises(DataError, match=r"99999999\.json has the highest number.*Remove")
        with highest, hold_lease(bucket / "lock", "the thing"):
            pass

    def test_a_commit_that_was_killed_is_finished_by_the_next_holder(self, bucket, monkeypatch):
        """A job opens the folder of its artifacts, and `trainyard gc` opens the root."""
        job, gc = open_path(f"{bucket}/folder/lock"), bucket / "folder/lock"

        def die(self: ObjectPath, data: bytes) -> None:
            if self.name == "result":
                raise KeyboardInterrupt
            create(self, data)

        create = ObjectPath.create
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(ObjectPath, "create", die)
            with hold_lease(job, "the thing") as lease:
                lease.commit(job.with_name("result"), b"done")
        with hold_lease(gc, "the thing"):
            assert (bucket / "folder/result").read() == b"done"

    def test_a_beat_does_not_take_the_own_commit_for_another_holder(self, bucket, monkeypatch):
        def create_slowly(*args: Any) -> bytes:
            record = create_record(*args)
            threading.Event().wait(0.5)  # until the answer arrives
            return record

        create_record = lease_module.create_record
        monkeypatch.setattr(lease_module, "_BEAT_SECONDS", 0.01)
        with hold_lease(bucket / "lock", "the thing") as lease:
            monkeypatch.setattr(lease_module, "create_record", create_slowly)
            lease.commit(bucket / "result", b"done")
        assert (bucket / "result").read() == b"done"

    def test_an_invalid_record_is_named_with_the_cure(self, bucket):
        (bucket / "lock/00000001.json").write(b"{}")
        with (
            pytest.raises(DataError, match=r"00000001\.json.*Remove it while no job uses"),
            hold_lease(bucket / "lock", "the thing"),
        ):
            pass

    @pytest.mark.parametrize("content", [b"newer", b"older"])
    def test_an_upload_without_an_answer_is_compared_with_what_is_there(
        self, bucket, monkeypatch, tmp_path, content
    ):
        def fail(*args: Any, **options: Any) -> None:
            raise obstore.exceptions.GenericError("the answer was lost")

        (bucket / "file").write(b"newer")
        (tmp_path / "file").write_bytes(content)
        monkeypatch.setattr(obstore, "put", fail)
        if content == b"newer":
            (bucket / "file").upload(tmp_path / "file")
        else:
            with pytest.raises(MachineError, match="was not uploaded"):
                (bucket / "file").upload(tmp_path / "file")

    def test_a_question_is_asked_once_in_a_block(self, bucket):
        (bucket / "file").write(b"first")
        with cache_requests():
            before = (bucket / "file").read()
            (bucket / "file").write(b"second")
            assert (before, (bucket / "file").read()) == (b"first", b"first")
        assert (bucket / "file").read() == b"second"

    def test_requests_and_bytes_are_counted(self, bucket):
        before = read_usage()
        (bucket / "file").write(b"12345")
        (bucket / "file").read()
        after = read_usage()
        assert after.requests - before.requests == 2
        assert after.bytes_written - before.bytes_written == 5
        assert after.bytes_read - before.bytes_read == 5

    def test_a_bucket_that_is_missing_is_named(self, bucket_root):
        missing = open_root(bucket_root.uri.replace("://trainyard", "://no-such-bucket"))
        for ask in (missing.list_folder, lambda: (missing / "file").write(b"")):
            with pytest.raises(ConfigError, match="no-such-bucket"):
                ask()

    @pytest.mark.parametrize("part", ["", ".", ".."])
    def test_a_key_that_is_no_path_is_named_with_the_cure(self, make_root, part):
        """N5."""
        root = make_root("s3")
        key = f"{root.uri.removeprefix('s3://')}/folder/{part}/x"
        root.server.put_empty_object(key)
        folder = open_root(root.uri) / "folder"
        with pytest.raises(DataError, match=r"Remove this object.*aws s3 rm") as walked:
            folder.walk()
        assert f"s3://{key}" in str(walked.value)
        with pytest.raises(DataError, match=r"aws s3 rm --recursive") as listed:
            folder.list_folder()
        assert f"s3://{key.removesuffix('x')}" in str(listed.value)

    def test_a_forked_process_gets_an_error_and_does_not_hang(self, bucket):
        (bucket / "file").write(b"")
        child = os.fork()
        if not child:
            try:
                (bucket / "file").read()
            except RuntimeError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_ca_file_that_is_missing_is_named(tmp_path):
    options = StoreOptions(ca_file=str(tmp_path / "ca.pem"))
    with pytest.raises(ConfigError, match=r"storage.ca_file: .*ca\.pem cannot be read"):
        open_root("s3://elsewhere/x", options).list_folder()


@pytest.mark.parametrize("uri", ["ftp://x/y", "http://x/y", "s3://", "simplecache::s3://x/y"])
def test_other_places_are_refused(uri):
    with pytest.raises(ConfigError, match="is not a place for artifacts"):
        open_root(uri)


def test_a_folder_may_have_any_spelling(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").write_bytes(b"1")
    for uri in ("x", f"file://{tmp_path}/x", Path("x")):
        assert open_path(uri).read() == b"1"
