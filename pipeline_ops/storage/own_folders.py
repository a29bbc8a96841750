"""Folders that this program made, and the only way to remove them.

A folder goes by the descriptor of its parent, by its name and by its owner. It stays where it is
a link or a mount point, or belongs to another user: it is foreign then, and a warning in the log
reports it once. So a link that somebody put there, or a folder that only looks like one of ours,
is never followed and never emptied.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from pipeline_ops.errors import MachineError

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def private_folder(path: Path, cure: str) -> Iterator[int]:
    """The descriptor of a folder that only this user can read and write.

    Args:
      path: the folder; its last part must not be a link.
      cure: what an operator can do if somebody else has the name.

    Raises:
      FileNotFoundError: there is no such folder.
      MachineError: the folder is not private, or it is a link or a file.
    """
    try:
        descriptor = os.open(path, FOLDER_FLAGS)
    except NotADirectoryError:
        raise MachineError(f"{path} is a link or a file, not a folder of this user; {cure}") from None
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise MachineError(f"{path} is a folder of the user {found.st_uid}, not of this user; {cure}")
        if mode := stat.S_IMODE(found.st_mode) & 0o077:
            raise MachineError(f"{path} is open to other users (mode {mode:03o}), so its content "
                               f"can't be trusted; run chmod 700 on it, or {cure}")
        yield descriptor
    finally:
        os.close(descriptor)


def owners_below(parent: int) -> set[int]:
    """The user ids that folders of this program may have in an open folder.

    That is this user, and the owner of the folder itself: network file systems map user ids, and
    what this process makes there belongs to the user that the parent belongs to.
    """
    return {os.geteuid(), os.fstat(parent).st_uid}


def remove_folder(name: str, parent: int, owners: Collection[int]) -> bool:
    """Removes a folder and all that is in it, unless it is foreign.

    Args:
      name: of the folder, one part of a path.
      parent: the descriptor of the folder that holds it.
      owners: the user ids that folders of this program have there.

    Returns:
      Whether it was for this program to remove. What can't be removed, such as a file that a
      dying process still writes, is left to the next try.
    """
    try:
        is_own = is_own_folder(name, parent, owners)
    except FileNotFoundError:
        return True
    if is_own:
        shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
    return is_own


def is_own_folder(name: str, parent: int, owners: Collection[int]) -> bool:
    """Whether it is a folder of one of these users on the same file system; else it is reported.

    Raises:
      FileNotFoundError: there is nothing of that name.
    """
    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    is_folder, is_here = stat.S_ISDIR(found.st_mode), found.st_dev == os.fstat(parent).st_dev
    if is_folder and is_here and found.st_uid in owners:
        return True
    report_foreign(os.path.join(path_of(parent), name))
    return False


def empty_folder(descriptor: int) -> None:
    """Removes all that is in an open folder of ours; links go, and what they lead to stays."""
    for name in os.listdir(descriptor):
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                shutil.rmtree(name, ignore_errors=True, dir_fd=descriptor)
            else:
                os.unlink(name, dir_fd=descriptor)


@functools.cache  # once for each path
def report_foreign(path: str) -> None:
    _log.warning("%s is not a folder that this program made for itself; it is left alone", path)


def path_of(descriptor: int) -> str:
    """For messages."""
    return os.readlink(f"/proc/self/fd/{descriptor}")
