"""Files and registries on file systems without hard links or locks, which the kernel refuses."""

from __future__ import annotations

import errno
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline_ops.errors import MachineError
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.open_store import open_path

TESTS = Path(__file__).parents[1]
WITHOUT = {
    "exfat": {"link": errno.EPERM},
    "smb": {"link": errno.ENOTSUP},
    "old fuse": {"link": errno.ENOSYS, "renameat2": errno.EINVAL},
    "older fuse": {"link": errno.EPERM, "renameat2": errno.ENOSYS},
}


def run_without(calls: dict[str, int], code: str, *arguments: str) -> subprocess.Popen:
    start = f"import sys; sys.path[:0] = [{str(TESTS / 'support')!r}]\nimport failing_syscalls\n"
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{start}failing_syscalls.fail_syscalls({calls!r})\n{code}",
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_output(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def test_the_kernel_does_refuse(tmp_path):
    """Proves that the tests below can fail."""
    (tmp_path / "file").touch()
    code = (
        "import os\n"
        "try: os.link(sys.argv[1], sys.argv[1] + '2')\n"
        "except PermissionError: print('refused')"
    )
    assert (
        read_output(run_without({"link": errno.EPERM}, code, str(tmp_path / "file"))).strip()
        == "refused"
    )


@pytest.mark.parametrize("calls", WITHOUT.values(), ids=WITHOUT.keys())
def test_a_registry_without_hard_links_publishes_promotes_and_rolls_back(tmp_path, calls):
    """F14: it published and could never promote."""
    code = """
from pathlib import Path
from publishers import publish
from pipeline_ops.registry.registry import Registry
registry = Registry(Path(sys.argv[1]))
for digest in "ab":
    registry.promote(publish(registry, digest).number, "better")
registry.roll_back("worse")
print(registry.find_champion().number)
"""
    place = tmp_path / "models"
    assert read_output(run_without(calls, code, str(place))).strip() == "1"
    assert [move.version for move in Registry(place).read_history().moves] == [1, 2, 1]
    assert sorted(os.listdir(place / "aliases")) == [
        f"0000000{number}.json" for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("calls", WITHOUT.values(), ids=WITHOUT.keys())
def test_of_many_who_write_the_same_record_one_is_told_that_it_has_it(tmp_path, calls):
    """F14: the promise of the registry holds without links, too."""
    code = """
import os, time
from pathlib import Path
from pipeline_ops.errors import MachineError
from pipeline_ops.storage.open_store import open_root
while not os.path.exists(sys.argv[1] + "/go"):
    time.sleep(0.001)
for number in range(200):
    try:
        file = open_root(Path(sys.argv[1], "records")) / str(number)
        file.create(sys.argv[2].encode() * 1000)
        print(number)
    except FileExistsError:
        pass
"""
    writers = {name: run_without(calls, code, str(tmp_path), name) for name in "abc"}
    (tmp_path / "go").touch()
    won = {name: read_output(writer).split() for name, writer in writers.items()}
    assert sorted(int(number) for numbers in won.values() for number in numbers) == list(range(200))
    assert all(
        (tmp_path / "records" / number).read_text() == name * 1000
        for name, numbers in won.items()
        for number in numbers
    )
    assert len(os.listdir(tmp_path / "records")) == 200


def test_moves_at_the_same_time_without_links_are_all_kept(tmp_path):
    """F14: where a record may be empty for a moment, the next move waits for it."""
    code = """
from pathlib import Path
from pipeline_ops.registry.registry import Registry
for number in range(20):
    Registry(Path(sys.argv[1])).set_alias(sys.argv[2], 1 + number % 2, "again")
"""
    place = tmp_path / "models"
    for number in (1, 2):
        (place / str(number)).mkdir(parents=True)
    movers = [
        run_without(WITHOUT["old fuse"], code, str(place), name) for name in ("one", "two", "three")
    ]
    for mover in movers:
        read_output(mover)
    moves = Registry(place).read_history().moves
    assert len(moves) == 60 and Registry(place).read_aliases().names == {
        "one": 2,
        "two": 2,
        "three": 2,
    }


def test_a_link_in_the_place_of_a_temporary_file_is_not_written_through(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    monkeypatch.setattr(secrets, "token_hex", lambda num_bytes: "guessed")
    (tmp_path / ".record.guessed.tmp").symlink_to(victim)
    with pytest.raises(MachineError, match="cannot write .*record"):
        open_path(tmp_path / "record").create(b"theirs")
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_named_with_the_cure(tmp_path, number):
    """F14: by the first lock of a job, and by the temporary folder of a command."""
    code = """
from pathlib import Path
from pipeline_ops.errors import MachineError
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.system.lease import hold_lease
from pipeline_ops.system.temp_dirs import use_temporary_folder
lock = open_root(Path(sys.argv[1])) / "name.lock"
for held in (hold_lease(lock, "it"), use_temporary_folder("it")):
    try:
        with held:
            print("held")
    except MachineError as error:
        print(error)
"""
    lease, temporary = read_output(run_without({"flock": number}, code, str(tmp_path))).splitlines()
    assert lease.startswith(f"cannot lock {tmp_path / 'name.lock'}: ")
    assert lease.endswith("Use a file system that supports flock.")
    assert temporary.endswith("supports flock, or set TMPDIR to another folder.")
