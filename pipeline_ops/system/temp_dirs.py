"""Temporary folders that are removed when their process ends, in whatever way it ends.

    <temporary folder>/trainyard-<user>-<host>/<name>/

TensorFlow, Beam and multiprocessing write into the temporary folder, and clean up only if Python
ends normally. Our processes are killed by signals, or leave by `os._exit`. Each job, and each gang
on each of its hosts, therefore has its own temporary folder and holds a lock on it. The owner
removes the folder in the end. After a killed owner, the next process that gets the lock removes it
(`sweep`).

The lock is on the folder itself, and systemd-tmpfiles spares a locked folder. The temporary folder
belongs to every user of this host, so a root that is not private to this user is refused. It may be
a share, and a lock is valid on one host only, so the host is part of the path. Names are short,
because the path of a socket has at most 108 bytes. These folders hold no files for the next try
(see `work_folder` in `contract/layout.py`) or for other hosts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.local_files import (
    FOLDER_FLAGS,
    empty_folder,
    make_write_error,
    open_private_folder,
    warn_unowned_folder,
)
from pipeline_ops.system.locks import try_lock

_log = logging.getLogger(__name__)
_REMOVAL_TRIES, _REMOVAL_PAUSE_SECONDS = 20, 0.05
_VARIABLE = "TMPDIR"
"""The variable that tempfile, TensorFlow, Beam and multiprocessing obey."""
_ALTERNATIVE = f"set {_VARIABLE} to another folder"


@dataclasses.dataclass(frozen=True)
class ScratchFolder:
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
                if _is_at(self.lock, self.folder):
                    self.folder.rmdir()
                break
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    break
                time.sleep(_REMOVAL_PAUSE_SECONDS)
        os.close(self.lock)


@contextlib.contextmanager
def use_temporary_folder(purpose: str) -> Iterator[Path]:
    """Gives this process and its new children a temporary folder for the block. Sweeps, too."""
    sweep()
    while (scratch := try_acquire_scratch_folder(f"{purpose}-{secrets.token_hex(4)}")) is None:
        pass  # another sweep was faster
    previous, previous_tempdir = os.environ.get(_VARIABLE), tempfile.tempdir
    os.environ |= scratch.environment
    tempfile.tempdir = str(scratch.folder)
    try:
        yield scratch.folder
    finally:
        if previous is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = previous
        tempfile.tempdir = previous_tempdir
        scratch.remove()
        sweep()


def try_acquire_scratch_folder(name: str) -> ScratchFolder | None:
    """The folder of that name, held and emptied, or None while another process holds it.

    Raises MachineError if this user can't use the temporary folder.
    """
    folder = get_scratch_path(name)
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.parent.mkdir(mode=0o700)
    except OSError as error:
        cure = f"Check its permissions, or {_ALTERNATIVE}."
        raise make_write_error(folder.parent, error, cure) from error
    try:
        with open_private_folder(folder.parent, _ALTERNATIVE):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            scratch = _try_lock_folder(folder)
    except FileNotFoundError:  # another sweep has removed the empty root
        return None
    except OSError as error:
        raise make_write_error(folder, error) from error
    if scratch:
        empty_folder(scratch.lock)
    return scratch


def sweep() -> None:
    """Removes the folders that no process holds. A root that is not ours is reported and stays."""
    try:
        with open_private_folder(_root(), _ALTERNATIVE):
            for folder in _root().iterdir():
                if scratch := _try_lock_folder(folder):
                    scratch.remove()
            with contextlib.suppress(OSError):  # it is in use, or gone
                _root().rmdir()
    except FileNotFoundError:
        return
    except MachineError as error:
        _log.warning("%s", error)


def get_scratch_path(name: str) -> Path:
    """The path of a scratch folder. The folder need not exist."""
    return _root() / name


def _root() -> Path:
    """The folder of all scratch folders, also if the temporary folder is itself one of them."""
    name = f"trainyard-{os.getuid()}-{compute_digest(socket.gethostname())[:8]}"
    temporary = Path(tempfile.gettempdir())
    return temporary.parent if temporary.parent.name == name else temporary / name


def _try_lock_folder(folder: Path) -> ScratchFolder | None:
    """Locks a folder. Returns None if it is missing, is not ours, or another process holds it."""
    with contextlib.ExitStack() as stack:
        try:
            lock = os.open(folder, FOLDER_FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            return None
        stack.callback(os.close, lock)
        found = os.fstat(lock)
        if found.st_uid != os.geteuid() or found.st_dev != folder.parent.stat().st_dev:
            warn_unowned_folder(str(folder))
        elif try_lock(lock, alternative=_ALTERNATIVE) and _is_at(lock, folder):
            stack.pop_all()
            return ScratchFolder(folder, lock)
    return None


def _is_at(lock: int, folder: Path) -> bool:
    """Returns whether a path still leads to the folder that was opened by it."""
    try:
        return os.path.samestat(os.fstat(lock), os.lstat(folder))
    except FileNotFoundError:
        return False
