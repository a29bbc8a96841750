"""Temporary folders that are removed when their process ends, in whatever way it ends.

    <temporary folder>/trainyard-<user>-<host>/<name>/

TensorFlow, Beam and multiprocessing write into the temporary folder, and clean up only if Python
ends normally. Our processes are killed by signals, or leave by `os._exit`. Each job, and each gang
on each of its hosts, therefore has its own temporary folder and holds a lock on it. The holder
removes the folder in the end. The folder of a killed holder is removed by the next process that
sweeps and gets the lock (`sweep`).

The lock is on the folder itself, so folder and lock always have the same holder, and
systemd-tmpfiles spares a locked folder. The lock is valid on one host only, even if the temporary
folder is a share that other hosts see. The host is therefore part of the path. Names are short,
because the path of a socket has at most 108 bytes. These folders hold no files for the next try
(see `work_folder` in `artifacts/layout.py`) or for other hosts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import logging
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.digest import digest_of
from pipeline_ops.storage.own_folders import (
    FOLDER_FLAGS,
    empty_folder,
    path_of,
    private_folder,
    report_foreign,
)

_log = logging.getLogger(__name__)
_REMOVAL_TRIES, _REMOVAL_PAUSE_SECONDS = 20, 0.05
_VARIABLE = "TMPDIR"
"""The variable that tempfile, TensorFlow, Beam and multiprocessing obey."""


@dataclasses.dataclass(frozen=True)
class Scratch:
    """A folder that is held until its lock is closed in every process that has inherited it."""

    folder: Path
    lock: int

    @property
    def environment(self) -> dict[str, str]:
        """The variables for processes that use it as their temporary folder."""
        return {_VARIABLE: str(self.folder)}

    def remove(self) -> None:
        """Removes the folder, then closes the lock.

        A dying process may still write for a moment. Its later files are left to the next sweep.
        """
        for _ in range(_REMOVAL_TRIES):
            empty_folder(self.lock)
            try:
                with _opened(self.folder.parent) as root:
                    if _is_entry(self.lock, root, self.folder.name):
                        os.rmdir(self.folder.name, dir_fd=root)
                break
            except (OSError, MachineError) as error:
                if getattr(error, "errno", None) != errno.ENOTEMPTY:
                    break
                time.sleep(_REMOVAL_PAUSE_SECONDS)
        os.close(self.lock)


@contextlib.contextmanager
def own_temporary_folder(purpose: str) -> Iterator[Path]:
    """Gives this process and its new children their own temporary folder for the block.

    It also removes the folders that other processes have left.

    Raises:
      MachineError: see `try_to_hold`.
    """
    sweep()
    while (scratch := try_to_hold(f"{purpose}-{secrets.token_hex(4)}")) is None:
        pass  # another sweep was faster
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
    """The folder of that name, held and empty, or None while another process holds it.

    Files that a killed holder has left in it are removed.

    Raises:
      MachineError: this user can't use the temporary folder.
    """
    _make_root()
    try:
        with _opened(_root()) as root:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, mode=0o700, dir_fd=root)
            scratch = _lock(root, name)
    except FileNotFoundError:  # another sweep has removed the empty root
        return None
    if scratch:
        empty_folder(scratch.lock)
    return scratch


def sweep() -> None:
    """Removes the folders that no process holds.

    A root that is not ours is reported and stays, with all its content.
    """
    try:
        with _opened(_root()) as root:
            for name in os.listdir(root):
                if scratch := _lock(root, name):
                    scratch.remove()
            with contextlib.suppress(OSError):  # it is in use, or gone
                os.rmdir(_root())
    except FileNotFoundError:
        return
    except MachineError as error:
        _log.warning("%s", error)


def folder_of(name: str) -> Path:
    """The path of a scratch folder. The folder need not exist."""
    return _root() / name


def _root() -> Path:
    """The folder that holds all scratch folders.

    If this process's temporary folder is a scratch folder, its root is used. The children's folders
    are then next to that folder, and not inside.
    """
    name = f"trainyard-{os.getuid()}-{digest_of(socket.gethostname())[:8]}"
    temporary = Path(tempfile.gettempdir())
    return temporary.parent if temporary.parent.name == name else temporary / name


def _make_root() -> None:
    root = _root()
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            root.mkdir(mode=0o700)
    except OSError as error:
        raise MachineError(
            f"could not make {root}: {error.strerror}; "
            f"mend the disk, or name another temporary folder by {_VARIABLE}"
        ) from error


def _opened(root: Path) -> contextlib.AbstractContextManager[int]:
    """The root's descriptor.

    The temporary folder belongs to every user of this host, so another user may have taken the
    name.

    Raises:
      FileNotFoundError: there is no root.
      MachineError: it is not a private folder of this user.
    """
    return private_folder(root, f"remove it, or name another temporary folder by {_VARIABLE}")


def _lock(root: int, name: str) -> Scratch | None:
    """Locks a folder. Returns None if it is missing, is not ours, or another process holds it."""
    try:
        lock = os.open(name, FOLDER_FLAGS, dir_fd=root)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if os.fstat(lock).st_uid == os.geteuid() and os.fstat(lock).st_dev == os.fstat(root).st_dev:
        if _try_flock(lock) and _is_entry(lock, root, name):
            return Scratch(folder_of(name), lock)
    else:
        report_foreign(os.path.join(path_of(root), name))
    os.close(lock)
    return None


def _try_flock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        place = path_of(lock)
        os.close(lock)
        raise MachineError(
            f"could not lock {place}: {error.strerror}; "
            f"name another temporary folder by {_VARIABLE}"
        ) from error
    return True


def _is_entry(lock: int, root: int, name: str) -> bool:
    """Returns whether a name still stands for the folder that was opened by it.

    The folder may have been removed in the meantime, and another one may have its name.
    """
    try:
        return os.path.samestat(os.fstat(lock), os.stat(name, dir_fd=root, follow_symlinks=False))
    except FileNotFoundError:
        return False
