"""Temporary folders that go, however their process ends, and the lock that each of them is. Real
processes, real signals."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.local_files import open_private_folder, remove_folder
from pipeline_ops.system.temp_dirs import (
    get_scratch_path,
    sweep,
    try_acquire_scratch_folder,
    use_temporary_folder,
)

_WRITE_AND_WAIT = """
import sys, tempfile
from pipeline_ops.storage.local_files import open_private_folder, remove_folder
from pipeline_ops.system.temp_dirs import use_temporary_folder
with use_temporary_folder("test"):
    tempfile.mkstemp()
    print(tempfile.mkdtemp(), flush=True)
    sys.stdin.read()
"""


pytestmark = pytest.mark.usefixtures("temporary")


@pytest.fixture
def start() -> Iterator[Callable[[], tuple[subprocess.Popen, Path]]]:
    """Starts processes that have written temporary files, and wait; gives the folder that is
    theirs, too."""
    started = []

    def start_one() -> tuple[subprocess.Popen, Path]:
        argv, pipe = [sys.executable, "-c", _WRITE_AND_WAIT], subprocess.PIPE
        started.append(subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True))
        return started[-1], Path(started[-1].stdout.readline().strip()).parent

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def test_what_a_block_writes_as_temporary_goes_with_it(temporary):
    before = dict(os.environ)
    with use_temporary_folder("test") as folder:
        assert Path(tempfile.mkdtemp()).parent == folder
        argv = [sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())"]
        told = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert told.stdout.strip() == str(folder)
    assert list(temporary.iterdir()) == []
    assert os.environ == before and tempfile.gettempdir() == str(temporary)


def test_a_block_that_fails_leaves_nothing(temporary):
    with pytest.raises(ZeroDivisionError), use_temporary_folder("test"):
        tempfile.mkstemp()
        raise ZeroDivisionError
    assert list(temporary.iterdir()) == []


def test_of_a_process_that_was_killed_the_next_one_removes_everything_and_of_one_that_lives_nothing(
    start, temporary
):
    (dead, its_folder), (living, other_folder) = start(), start()
    dead.kill()
    dead.wait()
    assert its_folder.is_dir()
    sweep()
    assert not its_folder.exists()
    assert len(list(other_folder.iterdir())) == 2
    living.communicate()
    assert list(temporary.iterdir()) == []


def test_what_a_process_starts_has_its_folder_beside_and_not_inside(temporary):
    with use_temporary_folder("job") as outer, use_temporary_folder("gang") as inner:
        assert inner.parent == outer.parent
    assert list(temporary.iterdir()) == []


def test_a_folder_is_held_by_one_process_and_by_those_that_inherit_its_lock(temporary):
    first = try_acquire_scratch_folder("gang")
    assert try_acquire_scratch_folder("gang") is None
    heir = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[first.lock]
    )
    os.close(first.lock)
    assert try_acquire_scratch_folder("gang") is None
    heir.send_signal(signal.SIGKILL)
    heir.communicate()
    (get_scratch_path("gang") / "of the one that was killed").mkdir()
    second = try_acquire_scratch_folder("gang")
    assert list(second.folder.iterdir()) == []
    second.remove()


def test_who_waits_for_a_folder_that_is_removed_does_not_hold_a_folder_that_is_not_there():
    """Each of many holds the folder, and removes it, while the others try to: at no time do two of
    them hold it."""
    inside, most, rounds = [], [], 50

    def hold_and_remove() -> None:
        done = 0
        while done < rounds:
            if scratch := try_acquire_scratch_folder("gang"):
                inside.append(scratch)
                most.append(len(inside))
                assert os.path.samestat(os.fstat(scratch.lock), scratch.folder.stat())
                inside.remove(scratch)
                scratch.remove()
                sweep()
                done += 1

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: hold_and_remove(), range(3)))
    assert len(most) == 3 * rounds and max(most) == 1


def test_the_path_of_a_socket_fits(monkeypatch):
    """Linux takes 108 bytes, and multiprocessing adds two names."""
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    path = get_scratch_path("preprocess-01234567") / "pymp-01234567" / "listener-01234567"
    assert len(str(path)) < 100
    with socket.socket(socket.AF_UNIX) as one:
        pytest.raises(FileNotFoundError, one.connect, str(path))


def test_a_link_in_the_place_of_the_root_is_not_followed_and_its_folder_keeps_everything(
    temporary, caplog
):
    """F3: `ln -s VICTIM /tmp/trainyard-UID-HASH` emptied the victim's folder."""
    victim = temporary / "victim"
    (victim / "thesis").mkdir(parents=True)
    (victim / "thesis" / "chapter").write_text("1")
    get_scratch_path("gang").parent.symlink_to(victim)
    sweep()
    cure = r"Remove it, or set TMPDIR to another folder\."
    with pytest.raises(MachineError, match=rf"is a link or a file, .*\. {cure}"):
        try_acquire_scratch_folder("gang")
    with pytest.raises(MachineError, match="is a link"), use_temporary_folder("test"):
        pass
    assert (victim / "thesis" / "chapter").read_text() == "1" and os.listdir(victim) == ["thesis"]
    assert "is a link or a file" in caplog.text


@pytest.mark.parametrize("mode", [0o770, 0o701, 0o707])
def test_a_root_that_others_can_enter_is_neither_used_nor_emptied(mode):
    """F3."""
    root = get_scratch_path("gang").parent
    (root / "test-01234567").mkdir(parents=True)
    root.chmod(mode)
    sweep()
    message = f"open to other users .mode 0{mode & 0o77:02o}.*Run chmod 700"
    with pytest.raises(MachineError, match=message):
        try_acquire_scratch_folder("gang")
    assert os.listdir(root) == ["test-01234567"]


def test_links_in_a_folder_go_and_what_they_lead_to_stays(temporary):
    """F3."""
    victim = temporary / "victim"
    victim.mkdir()
    (victim / "file").write_text("1")
    with use_temporary_folder("test") as folder:
        (folder / "link").symlink_to(victim)
        (folder.parent / "link").symlink_to(victim)
    sweep()
    assert os.listdir(victim) == ["file"] and (folder.parent / "link").is_symlink()


def test_a_folder_of_another_user_is_not_used(temporary):
    """F3. Where this is not root, who alone can give a folder away, the folder is root's own."""
    name = get_scratch_path("gang").parent
    if os.geteuid() == 0:
        name.mkdir()
        os.chown(name, 65534, 65534)
    root = name if os.geteuid() == 0 else Path("/usr")
    with (
        pytest.raises(MachineError, match=r"not of this user\. Remove it, or choose another"),
        open_private_folder(root, "choose another"),
    ):
        pass


def test_in_a_root_of_ours_the_folder_of_another_user_stays(temporary, caplog):
    """F3."""
    root = get_scratch_path("gang").parent
    (root / "theirs").mkdir(parents=True)
    root.chmod(0o700)
    descriptor = os.open(root, os.O_RDONLY)
    assert not remove_folder("theirs", descriptor, {os.geteuid() + 1})
    os.close(descriptor)
    assert os.listdir(root) == ["theirs"]
    assert "theirs is not a folder that this program made" in caplog.text
