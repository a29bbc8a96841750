"""What a host keeps: made once, whole or absent, never removed while somebody uses it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline_ops.contracts.host_cache import HostCache

MAKE = """
import os, sys, time
sys.path[:0] = {path!r}
from pathlib import Path
from pipeline_ops.contracts.host_cache import HostCache

def fill(folder):
    with open({log!r}, "a") as log:
        log.write("made\\n")
    (folder / "half").write_text("x")
    time.sleep({seconds})
    (folder / "whole").write_text("x" * 100)

print(HostCache(Path({folder!r}), {limit}).entry("thing", {digest!r}, fill), flush=True)
sys.stdin.read()
"""


def start(tmp_path: Path, digest="1", seconds=0.0, limit=1 << 20) -> subprocess.Popen:
    code = MAKE.format(path=sys.path, log=str(tmp_path / "log"), folder=str(tmp_path / "host"), digest=digest, seconds=seconds, limit=limit)
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def end(*processes: subprocess.Popen) -> None:
    for process in processes:
        process.communicate()
        assert process.returncode == 0


def entries(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "host").iterdir() if not path.name.startswith("."))


def test_of_several_processes_one_makes_it_and_the_others_wait(tmp_path):
    processes = [start(tmp_path, seconds=0.3) for _ in range(3)]
    assert {process.stdout.readline().strip() for process in processes} == {str(tmp_path / "host" / "thing-1")}
    end(*processes)
    assert (tmp_path / "log").read_text() == "made\n"


def test_what_a_killed_process_has_half_made_is_never_seen(tmp_path):
    killed = start(tmp_path, seconds=60)
    while not (tmp_path / "log").exists():
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert entries(tmp_path) == []
    end(start(tmp_path))
    assert sorted(path.name for path in (tmp_path / "host" / "thing-1").iterdir()) == ["half", "whole"]
    assert [path.name for path in (tmp_path / "host").glob("*.staging")] == []


def test_the_oldest_are_removed_when_there_is_too_much_and_nobody_uses_them(tmp_path):
    for digest in "123":
        end(start(tmp_path, digest, limit=250))
    assert entries(tmp_path) == ["thing-2", "thing-3"]


def test_what_somebody_uses_stays(tmp_path):
    user = start(tmp_path, "1")
    user.stdout.readline()
    end(start(tmp_path, "2", limit=10))
    assert entries(tmp_path) == ["thing-1", "thing-2"]
    end(user)
    end(start(tmp_path, "3", limit=10))
    assert entries(tmp_path) == ["thing-3"]


def test_a_failure_of_the_maker_leaves_nothing(tmp_path):
    def fill(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        HostCache(tmp_path, 1).entry("thing", "1", fill)
    assert [path for path in tmp_path.iterdir() if not path.name.startswith(".")] == []
