"""Records every open, read and change below a folder, as the kernel reports it."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import struct
from collections.abc import Iterable
from pathlib import Path

_OVERFLOW = 0x4000
_NAMES = {
    0x1: "read",
    0x2: "written",
    0x4: "changed",
    0x20: "opened",
    0x40: "moved away",
    0x80: "moved here",
    0x100: "made",
    0x200: "removed",
}
"""The bits of an event, of `sys/inotify.h`."""
_EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class TouchMonitor:
    """Reports what happens to the files and folders below some roots, by inotify.

    Folders that come later are not watched, but their coming is.
    """

    def __init__(self, roots: Iterable[Path]):
        self._descriptor = _check(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._folders: dict[int, Path] = {}
        for folder in [
            folder
            for root in roots
            for folder in (root, *(path for path in root.rglob("*") if path.is_dir()))
        ]:
            watch = _check(
                _libc.inotify_add_watch(self._descriptor, os.fsencode(folder), sum(_NAMES))
            )
            self._folders[watch] = folder
        self.touched()

    def touched(self) -> list[str]:
        """The events since the last call, such as `PATH was opened`."""
        found = dict[str, None]()
        while data := self._read():
            while data:
                watch, mask, _, size = _EVENT.unpack_from(data)
                end = _EVENT.size + size
                name, data = data[_EVENT.size : end].rstrip(b"\0"), data[end:]
                assert not mask & _OVERFLOW, "more has happened than the kernel keeps"
                if watch in self._folders:
                    path = self._folders[watch] / os.fsdecode(name)
                    found |= {
                        f"{path} was {what}": None for bit, what in _NAMES.items() if mask & bit
                    }
        return list(found)

    def close(self) -> None:
        os.close(self._descriptor)

    def _read(self) -> bytes:
        try:
            return os.read(self._descriptor, 1 << 20)
        except BlockingIOError:
            return b""


def read_states(roots: Iterable[Path]) -> dict[str, tuple]:
    """The states of all files below some roots: kind, inode, size, and the time of the last change.

    A program cannot reset the latter.
    """
    found = {}
    for path in [path for root in roots for path in (root, *root.rglob("*"))]:
        stat = path.lstat()
        found[str(path)] = (
            stat.st_mode,
            stat.st_ino,
            stat.st_size if path.is_file() else 0,
            stat.st_mtime_ns,
            stat.st_ctime_ns,
        )
    return found


def compute_digests(roots: Iterable[Path]) -> dict[str, str]:
    """The contents of every file below some roots."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for root in roots
        for path in root.rglob("*")
        if path.is_file()
    }


def _check(value: int) -> int:
    if value < 0:
        number = ctypes.get_errno()
        raise OSError(number, errno.errorcode.get(number, ""))
    return value
