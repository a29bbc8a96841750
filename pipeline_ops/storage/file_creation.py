"""Creation of files under a new name, on any file system.

A hard link is the usual way to give a finished file a name that is still free. exFAT, SMB and many
FUSE file systems have no links. There, the file gets its name by a rename that replaces no file, or
else by an exclusive creation.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from pathlib import Path
from typing import IO

NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)
"""Errors of `link` if the file system has no hard links, or none between the two locations."""
_NO_RENAME_FLAGS = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


def create_file(path: Path, mode: int) -> IO[bytes]:
    """Opens a new file for writing. Raises OSError."""
    return open(os.open(path, _CREATE | os.O_EXCL, mode), "wb")


def link_exclusively(temporary: Path, path: Path) -> None:
    """Gives a finished file a name that no other file has. The temporary name may remain.

    A reader finds the whole file or none. On a file system that has neither links nor renames
    without replacement, it may find an empty file for a moment.

    Raises:
      FileExistsError: the name is taken.
      OSError: the disk refused the file.
    """
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        _rename_exclusively(temporary, path)


def _rename_exclusively(temporary: Path, path: Path) -> None:
    if (
        _libc.renameat2(
            _AT_FDCWD, os.fsencode(temporary), _AT_FDCWD, os.fsencode(path), _RENAME_NOREPLACE
        )
        == 0
    ):
        return
    number = ctypes.get_errno()
    if number not in _NO_RENAME_FLAGS:
        raise OSError(number, os.strerror(number), str(path))
    _copy_exclusively(temporary, path)


def _copy_exclusively(temporary: Path, path: Path) -> None:
    descriptor = os.open(path, _CREATE | os.O_EXCL, 0o666)
    try:
        with open(temporary, "rb") as reader, open(descriptor, "wb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
            writer.flush()
            os.fsync(writer.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
