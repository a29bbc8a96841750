"""The disk cache of a host: entries are made once, whole or absent, and stay while in use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import wait_until

from pipeline_ops.errors import MachineError
from pipeline_ops.system.disk_cache import HostCache

MAKE = """
import os, sys, time
sys.path[:0] = {path!r}
from pathlib import Path
from pipeline_ops.system.disk_cache import HostCache

def fill(folder):
    with open({log!r}, "a") as log:
        log.write("made\\n")
    (folder / "half").write_text("x")
    time.sleep({seconds})
    (folder / "whole").write_text("x" * 100)

print(HostCache(Path({folder!r}), {limit}).get_or_create("parsed", {digest!r}, fill), flush=True)
sys.stdin.read()
"""


def start(tmp_path: Path, digest="1", seconds=0.0, limit=1 << 20) -> subprocess.Popen:
    code = MAKE.format(
        path=sys.path,
        log=str(tmp_path / "log"),
        folder=str(tmp_path / "host"),
        digest=digest,
        seconds=seconds,
        limit=limit,
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def kill_a_maker(tmp_path: Path, is_so: Callable[[], bool] = lambda: True) -> None:
    """Kills a process that is making an entry. Before, a condition must hold."""
    maker = start(tmp_path, seconds=60)
    wait_until((tmp_path / "log").exists)
    assert is_so()
    maker.kill()
    maker.communicate()


def end(*processes: subprocess.Popen) -> None:
    for process in processes:
        process.communicate()
        assert process.returncode == 0


def get_cache_folder(tmp_path: Path) -> Path:
    return tmp_path / "host" / "trainyard-cache" / str(os.geteuid())


def entries(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in get_cache_folder(tmp_path).glob("[!.]*"))


def test_of_several_processes_one_makes_it_and_the_others_wait(tmp_path):
    processes = [start(tmp_path, seconds=0.3) for _ in range(3)]
    assert {process.stdout.readline().strip() for process in processes} == {
        str(get_cache_folder(tmp_path) / "parsed-1")
    }
    end(*processes)
    assert (tmp_path / "log").read_text() == "made\n"


def test_waiting_is_told_for_each_entry(tmp_path):
    """A worker that only waits is in that phase, and not hung in the preparation of its input."""
    makers = [start(tmp_path, digest, seconds=2) for digest in ("1", "2")]
    wait_until(lambda: (tmp_path / "log").exists() and len((tmp_path / "log").read_text()) == 10)
    reasons: list[str] = []
    cache = HostCache(tmp_path / "host", 1 << 20, reasons.append)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda digest: cache.get_or_create("parsed", digest, os.mkdir), ("1", "2")))
    held = sorted(f"is held by process {maker.pid} " in " ".join(reasons) for maker in makers)
    assert (len(reasons), held) == (2, [True, True])
    end(*makers)


def test_what_a_killed_process_has_half_made_is_never_seen(tmp_path):
    kill_a_maker(tmp_path)
    assert entries(tmp_path) == []
    end(start(tmp_path))
    made = get_cache_folder(tmp_path) / "parsed-1"
    assert sorted(os.listdir(made)) == ["half", "whole"]
    assert [path.name for path in made.parent.glob("*.staging")] == []


def test_the_oldest_are_removed_when_there_is_too_much_and_nobody_uses_them(tmp_path):
    for digest in "123":
        end(start(tmp_path, digest, limit=250))
    assert entries(tmp_path) == ["parsed-2", "parsed-3"]


def test_what_somebody_uses_stays(tmp_path):
    user = start(tmp_path, "1")
    user.stdout.readline()
    end(start(tmp_path, "2", limit=10))
    assert entries(tmp_path) == ["parsed-1", "parsed-2"]
    end(user)
    end(start(tmp_path, "3", limit=10))
    assert entries(tmp_path) == ["parsed-3"]


def test_a_failure_of_the_maker_leaves_nothing(tmp_path):
    def fill(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        HostCache(tmp_path / "host", 1).get_or_create("parsed", "1", fill)
    assert entries(tmp_path) == []


def test_a_shared_local_folder_loses_nothing_that_the_cache_did_not_make(tmp_path):
    """F4: with `train.input.local_folder: /scratch` the oldest folders in /scratch were removed."""
    files = [tmp_path / "host" / name / "file" for name in ("data", "parsed-1", "results")]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("x" * 1000)
    for digest in "123":
        end(start(tmp_path, digest, limit=10))
    names = ["data", "parsed-1", "results", "trainyard-cache"]
    assert sorted(os.listdir(tmp_path / "host")) == names
    assert all(file.exists() for file in files)
    assert entries(tmp_path) == ["parsed-3"]


def test_in_the_cache_itself_only_its_own_entries_are_removed_and_others_reported(tmp_path, caplog):
    """F4."""
    victim, cache = tmp_path / "victim", HostCache(tmp_path / "host", 1)
    victim.mkdir()
    (victim / "file").write_text("x" * 1000)
    cache.get_or_create("parsed", "1", lambda folder: None)
    chapter = get_cache_folder(tmp_path) / "thesis" / "chapter"
    chapter.parent.mkdir()
    chapter.write_text("x" * 1000)
    (get_cache_folder(tmp_path) / "dataset-2").symlink_to(victim)
    end(start(tmp_path, "3", limit=10))
    cache.get_or_create("parsed", "4", lambda folder: None)
    assert {"thesis", "dataset-2"} <= set(entries(tmp_path))
    assert (victim / "file").exists() and chapter.exists()
    assert "thesis is not a folder that this program made" in caplog.text
    assert "dataset-2 is not a folder" in caplog.text


def test_a_cache_that_others_can_write_to_is_refused(tmp_path):
    """F4."""
    get_cache_folder(tmp_path).mkdir(parents=True)
    get_cache_folder(tmp_path).chmod(0o777)
    cure = "Run chmod 700 on it, or set train.input.local_folder to another folder"
    with pytest.raises(MachineError, match=f"open to other users .*{cure}"):
        HostCache(tmp_path / "host", 1).get_or_create("parsed", "1", lambda folder: None)


def test_users_who_share_a_local_folder_have_a_cache_each(tmp_path):
    """F4."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host").chmod(0o1777)
    made = HostCache(tmp_path / "host", 1).get_or_create("parsed", "1", lambda folder: None)
    assert made.parent.stat().st_mode & 0o7777 == 0o700
    assert made.parent.parent.stat().st_mode & 0o7777 == 0o1777


def write_100(folder: Path) -> None:
    (folder / "file").write_text("x" * 100)


def test_without_waiting_nothing_exceeds_the_limit(tmp_path):
    cache = HostCache(tmp_path / "host", 250)
    used = [cache.try_open_entry("shard", digest, write_100, 100) for digest in "123"]
    assert [entry is not None for entry in used] == [True, True, False]
    assert entries(tmp_path) == ["shard-1", "shard-2"]
    used[0].close()
    third = cache.try_open_entry("shard", "3", write_100, 100)
    assert third is not None
    assert entries(tmp_path) == ["shard-2", "shard-3"]
    assert (third.path / "file").read_text() == "x" * 100


def test_who_does_not_wait_gets_nothing_while_another_process_makes_it(tmp_path):
    cache = HostCache(tmp_path / "host", 1 << 20)
    kill_a_maker(tmp_path, lambda: cache.try_open_entry("parsed", "1", write_100, 100) is None)
    entry = cache.try_open_entry("parsed", "1", write_100, 100)
    assert entry is not None and (entry.path / "file").exists()


def test_what_a_killed_maker_has_left_is_removed_when_another_entry_needs_the_room(tmp_path):
    kill_a_maker(tmp_path)
    assert any(get_cache_folder(tmp_path).glob(".*.staging"))
    HostCache(tmp_path / "host", 100).try_open_entry("shard", "7", write_100, 100)
    assert not any(get_cache_folder(tmp_path).glob(".*.staging"))


def test_many_entries_leave_few_lock_files(tmp_path):
    cache = HostCache(tmp_path / "host", 1000)
    for number in range(600):
        entry = cache.try_open_entry("shard", f"{number:08x}"[::-1], write_100, 100)
        entry.close()
    assert len(list(get_cache_folder(tmp_path).iterdir())) <= 256 + 10 + 1


def test_several_users_never_lose_an_entry_that_they_hold(tmp_path):
    """Entries come and go under a small limit, and each is whole as long as it is held."""

    def work(first: int) -> None:
        cache = HostCache(tmp_path / "host", 250)
        for number in range(40):
            digest = f"{(number * 7 + first) % 9:02x}"
            for entry in (
                cache.open_entry("shard", digest, write_100),
                cache.try_open_entry("shard", digest, write_100, 100),
            ):
                assert entry is None or (entry.path / "file").read_text() == "x" * 100

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
