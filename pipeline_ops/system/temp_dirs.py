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
from pipeline_ops.storage.own_folders import FOLDER_FLAGS, empty_folder, path_of, private_folder, report_foreign

_log = logging.getLogger(__name__)
_REMOVAL_TRIES, _REMOVAL_PAUSE_SECONDS = 20, 0.05
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
        """Removes it, then closes the lock. A dying process may still write for a moment; what it writes later is left to the next sweep."""
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
    """Removes the folders that nobody holds. A root that is not ours is reported and left alone, with all that is in it."""
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
    """Where a scratch folder lies, whether it is there or not."""
    return _root() / name


def _root() -> Path:
    """Of a process whose temporary folder is a scratch folder, the root is that one's: what it starts has a folder beside it, and not inside."""
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
        raise MachineError(f"could not make {root}: {error.strerror}; mend the disk, or name another temporary folder by {_VARIABLE}") from error


def _opened(root: Path) -> contextlib.AbstractContextManager[int]:
    """The root's descriptor. The temporary folder belongs to every user of this host, so another one may have taken the name.

    Raises:
      FileNotFoundError: there is none.
      MachineError: it is no folder of this user alone.
    """
    return private_folder(root, f"remove it, or name another temporary folder by {_VARIABLE}")


def _lock(root: int, name: str) -> Scratch | None:
    """None where another process holds it, it is not there (any more), or it is not ours."""
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
        raise MachineError(f"could not lock {place}: {error.strerror}; name another temporary folder by {_VARIABLE}") from error
    return True


def _is_entry(lock: int, root: int, name: str) -> bool:
    """Whether a name still stands for the folder that was opened by it; it may have been removed since, and another may be there."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(name, dir_fd=root, follow_symlinks=False))
    except FileNotFoundError:
        return False
