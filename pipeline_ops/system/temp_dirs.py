"""Temporary folders that are removed when their process ends, in whatever way it ends.

    <temporary folder>/trainyard-<user>-<host>/<name>/

TensorFlow, Beam and multiprocessing write into the temporary folder, and clean up only if Python
ends normally. Our processes are killed by signals, or leave by `os._exit`. Each job, and each gang
on each of its hosts, therefore has its own temporary folder and holds a lock on it. Whoever finds a
folder without a lock removes it (`sweep`): the owner in the end, or the next process.

The lock is on the folder itself, and systemd-tmpfiles spares a locked folder. The temporary folder
belongs to every user of this host, so a root that is not private to this user is refused. It may be
a share, and a lock is valid on one host only, so the host is part of the path. Names are short,
because the path of a socket has at most 107 bytes. These folders hold no files for the next try
(see `work_folder` in `contract/layout.py`) or for other hosts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.local_files import (
    empty_folder,
    make_write_error,
    open_or_make_private_folder,
    open_private_folder,
    remove_folder,
)
from pipeline_ops.system.locks import lock_folder

_log = logging.getLogger(__name__)
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
        """Empties the folder, closes the lock and sweeps. The folder stays while an heir lives."""
        empty_folder(self.lock)
        os.close(self.lock)
        sweep()


@contextlib.contextmanager
def use_temporary_folder(purpose: str) -> Iterator[Path]:
    """Gives this process and its new children a temporary folder for the block. Sweeps, too.

    Raises MachineError like `try_acquire_scratch_folder`.
    """
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


def try_acquire_scratch_folder(name: str) -> ScratchFolder | None:
    """The folder of that name, held and emptied, or None while another process holds it.

    Raises MachineError if this user can't use the temporary folder, or its disk is full.
    """
    folder = get_scratch_path(name)
    try:
        with open_or_make_private_folder(folder.parent, _ALTERNATIVE) as root:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=root)
            lock = lock_folder(name, root, alternative=_ALTERNATIVE)
    except FileNotFoundError:  # another sweep has removed the empty root
        return None
    except OSError as error:
        raise make_write_error(folder, error) from error
    if lock is None:
        return None
    empty_folder(lock)
    return ScratchFolder(folder, lock)


def sweep() -> None:
    """Removes the folders that no process holds. A root that is not ours is reported and stays."""
    try:
        with open_private_folder(_root(), _ALTERNATIVE) as root:
            for name in os.listdir(root):
                if (lock := lock_folder(name, root, alternative=_ALTERNATIVE)) is not None:
                    remove_folder(name, root)
                    os.close(lock)
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
