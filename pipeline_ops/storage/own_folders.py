"""Folders that this program has made, and the only way to remove them.

A folder is identified by the descriptor of its parent, its name and its owner. A link, a mount
point or another user's folder is not owned. It stays, and a warning in the log reports it once. A
link that another user has put there, or a folder with a name like ours, is therefore never followed
and never emptied.
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
def open_private_folder(path: Path, alternative: str) -> Iterator[int]:
    """The descriptor of a folder that only this user can read and write.

    Args:
      path: the folder; its last part must not be a link.
      alternative: what an operator can do instead if another user has the name.

    Raises:
      FileNotFoundError: there is no such folder.
      MachineError: the folder is not private, or it is a link or a file.
    """
    try:
        descriptor = os.open(path, FOLDER_FLAGS)
    except NotADirectoryError:
        raise MachineError(
            f"{path} is a link or a file, not a folder of this user. Remove it, or {alternative}."
        ) from None
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise MachineError(
                f"{path} is a folder of the user {found.st_uid}, not of this user. "
                f"Remove it, or {alternative}."
            )
        if mode := stat.S_IMODE(found.st_mode) & 0o077:
            raise MachineError(
                f"{path} is open to other users (mode {mode:03o}), so its content "
                f"can't be trusted. Run chmod 700 on it, or {alternative}."
            )
        yield descriptor
    finally:
        os.close(descriptor)


def find_allowed_owners(parent: int) -> set[int]:
    """The user ids that folders of this program may have in an open folder.

    These are this user and the owner of the folder itself. Network file systems map user ids, so
    that a new entry there belongs to the owner of its parent.
    """
    return {os.geteuid(), os.fstat(parent).st_uid}


def remove_folder(name: str, parent: int, owners: Collection[int] | None = None) -> bool:
    """Removes a folder with all its content, unless it is not owned.

    Args:
      name: the folder's name, one part of a path.
      parent: the descriptor of the folder that holds it.
      owners: the user ids that folders of this program have there. By default those of
        `find_allowed_owners`.

    Returns:
      Whether the folder belonged to this program. Entries that can't be removed, such as a file
        that a dying process still writes, are left to the next try.
    """
    try:
        is_own = is_own_folder(name, parent, owners)
    except FileNotFoundError:
        return True
    if is_own:
        shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
    return is_own


def is_own_folder(name: str, parent: int, owners: Collection[int] | None = None) -> bool:
    """Returns whether an entry is a folder of one of these users on the same file system.

    Any other entry is reported.

    Raises:
      FileNotFoundError: there is no entry of that name.
    """
    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    is_folder, is_here = stat.S_ISDIR(found.st_mode), found.st_dev == os.fstat(parent).st_dev
    if is_folder and is_here and found.st_uid in (owners or find_allowed_owners(parent)):
        return True
    warn_unowned_folder(os.path.join(get_descriptor_path(parent), name))
    return False


def empty_folder(descriptor: int) -> None:
    """Removes the content of an open folder of ours. Links are removed, and their targets stay."""
    for name in os.listdir(descriptor):
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                shutil.rmtree(name, ignore_errors=True, dir_fd=descriptor)
            else:
                os.unlink(name, dir_fd=descriptor)


@functools.cache  # once for each path
def warn_unowned_folder(path: str) -> None:
    _log.warning(
        "%s is not a folder that this program made for itself. It is left unchanged.", path
    )


def get_descriptor_path(descriptor: int) -> str:
    """The path of an open descriptor, for messages."""
    return os.readlink(f"/proc/self/fd/{descriptor}")
