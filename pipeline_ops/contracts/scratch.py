"""Folders for what nobody needs any more when a process is over. They go, however it ends.

    <temporary folder>/trainyard-<user>-<host>/<name>/

TensorFlow, Beam and multiprocessing write into the temporary folder, and tidy up only where Python ends in the ordinary way; ours are killed
by signals, or leave by `os._exit`. So each job, and each gang on each of its hosts, has a temporary folder of its own and holds a lock
on it. Who has it removes it in the end; of one that was killed, whoever looks next gets the lock and removes it (`sweep`).

The lock is on the folder itself, so nobody can hold the one without the other, and systemd-tmpfiles spares a folder that is locked. It holds
on one host only, also where the temporary folder is a share that others see, which is why the host is in the path. Names
are short, because the path of a socket has 108 bytes. Nothing in here is for the next try (`layout.work_folder`), or for other hosts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pipeline_ops.contracts.errors import MachineError
from pipeline_ops.contracts.fingerprint import digest_of

_VARIABLE = "TMPDIR"
"""What tempfile, TensorFlow, Beam and multiprocessing obey."""


@dataclasses.dataclass(frozen=True)
class Scratch:
    """A folder that is held, until its lock is closed in every process that has inherited it."""

    folder: Path
    lock: int

    @property
    def environment(self) -> dict[str, str]:
        """For processes that shall have it as their temporary folder."""
        return {_VARIABLE: str(self.folder)}

    def remove(self) -> None:
        """Lets go of it once it is gone. What can't be removed, as what a dying process still writes, is left to the next sweep."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self.lock)


@contextlib.contextmanager
def own_temporary_folder(purpose: str) -> Iterator[Path]:
    """Gives this process, and those that it starts meanwhile, a temporary folder of their own for the block; and removes what others have left.

    Raises:
      MachineError: as `try_to_hold`.
    """
    sweep()
    while (scratch := try_to_hold(f"{purpose}-{secrets.token_hex(4)}")) is None:
        pass  # a sweep has been faster
    kept, kept_by_tempfile = os.environ.get(_VARIABLE), tempfile.tempdir
    os.environ |= scratch.environment
    tempfile.tempdir = str(scratch.folder)
    try:
        yield scratch.folder
    finally:
        if kept is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = kept
        tempfile.tempdir = kept_by_tempfile
        scratch.remove()
        sweep()


def try_to_hold(name: str) -> Scratch | None:
    """The folder of that name, held and empty; what one that was killed has left in it is removed. None while another process holds it.

    Raises:
      MachineError: the temporary folder is not for us to use.
    """
    folder = folder_of(name)
    _make_root(folder.parent)
    with contextlib.suppress(FileExistsError, FileNotFoundError):  # another sweep may have removed an empty root
        folder.mkdir()
    scratch = _lock(folder)
    if scratch:
        _empty(folder)
    return scratch


def sweep() -> None:
    """Removes the folders that nobody holds."""
    root = _root()
    with contextlib.suppress(FileNotFoundError):
        for folder in list(root.iterdir()):
            if scratch := _lock(folder):
                scratch.remove()
    with contextlib.suppress(OSError):  # it is in use, or gone
        root.rmdir()


def folder_of(name: str) -> Path:
    """Where a scratch folder lies, whether it is there or not."""
    return _root() / name


def _root() -> Path:
    """Of a process whose temporary folder is a scratch folder, the root is that one's: what it starts has a folder beside it, and not inside."""
    name = f"trainyard-{os.getuid()}-{digest_of(socket.gethostname())[:8]}"
    temporary = Path(tempfile.gettempdir())
    return temporary.parent if temporary.parent.name == name else temporary / name


def _make_root(root: Path) -> None:
    """The temporary folder belongs to everybody on this host, so somebody else may have taken the name."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            root.mkdir(mode=0o700)
        found = root.lstat()
    except FileNotFoundError:  # a sweep has removed it again
        return
    except OSError as error:
        raise MachineError(f"could not make {root}: {error.strerror}; mend the disk, or name another temporary folder by {_VARIABLE}") from error
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise MachineError(f"{root} is no folder of this user; remove it, or name another temporary folder by {_VARIABLE}")


def _lock(folder: Path) -> Scratch | None:
    """None where another process holds it, or it is not there (any more)."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.lstat(folder)):  # else it was removed between the two calls, and another may be there by now
            return Scratch(folder, lock)
    os.close(lock)
    return None


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
