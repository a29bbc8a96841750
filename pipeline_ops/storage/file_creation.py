"""Files under a name that is new, on any file system.

A hard link is the usual way to give a finished file a name that nobody else has taken. exFAT, SMB
and many FUSE file systems have no links: there it is a rename that replaces nothing, or else an
exclusive creation.
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
"""What `link` says where the file system has no hard links, or none between the two places."""
_NO_RENAME_FLAGS = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


def create_or_truncate(path: Path, mode: int) -> IO[bytes]:
    """A file to write to; a link of that name is refused. Raises OSError."""
    return open(os.open(path, _CREATE | os.O_TRUNC, mode), "wb")


def name_once(temporary: Path, path: Path) -> None:
    """Gives a finished file a name that no other has; the temporary name may be left over.

    A reader meets the whole file or none. Only on a file system that has neither links nor
    renames without replacement may it meet an empty file for a moment.

    Raises:
      FileExistsError: the name is taken.
      OSError: the disk refused it.
    """
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        _rename_once(temporary, path)


def _rename_once(temporary: Path, path: Path) -> None:
    if _libc.renameat2(_AT_FDCWD, os.fsencode(temporary), _AT_FDCWD, os.fsencode(path),
                       _RENAME_NOREPLACE) == 0:
        return
    number = ctypes.get_errno()
    if number not in _NO_RENAME_FLAGS:
        raise OSError(number, os.strerror(number), str(path))
    _copy_once(temporary, path)


def _copy_once(temporary: Path, path: Path) -> None:
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
