"""One entry of the disk cache: its folder, and the lock of those who use it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import weakref
from collections.abc import Iterator
from pathlib import Path

from pipeline_ops.storage.own_folders import FOLDER_FLAGS
from pipeline_ops.system.locks import wait_for_shared_lock


class CacheEntry:
    """An entry that this process uses. It stays on the disk as long as this object exists.

    Args:
      path: the folder of the entry.
      descriptor: the open folder, with a shared lock.
    """

    def __init__(self, path: Path, descriptor: int):
        self.path = path
        self.close = weakref.finalize(self, os.close, descriptor)
        """Ends the use. The kernel then releases the lock."""


@dataclasses.dataclass(frozen=True)
class EntryPlace:
    """The open cache folder, and the name of an entry in it."""

    here: int
    name: str
    final: Path


def lock_new_entry(place: EntryPlace, staging: Path) -> CacheEntry:
    """Locks an entry for use before it gets its name, so that no other process removes it."""
    descriptor = os.open(staging.name, FOLDER_FLAGS, dir_fd=place.here)
    entry = CacheEntry(place.final, descriptor)
    wait_for_shared_lock(descriptor)
    return entry


def use_entry(place: EntryPlace) -> CacheEntry | None:
    """Locks an entry for use. Returns None if there is none.

    A link, a file or another user's folder of that name is not an entry.
    """
    if not find_entry(place.here, place.name):
        return None
    try:
        descriptor = os.open(place.name, FOLDER_FLAGS, dir_fd=place.here)
    except FileNotFoundError:
        return None
    entry = CacheEntry(place.final, descriptor)
    wait_for_shared_lock(descriptor)
    found = find_entry(place.here, place.name)
    if found is None or found.st_ino != os.fstat(descriptor).st_ino:  # removed before the lock
        entry.close()
        return None
    os.utime(place.name, dir_fd=place.here, follow_symlinks=False)
    return entry


@contextlib.contextmanager
def open_entry_folder(here: int, name: str) -> Iterator[int | None]:
    """Yields the descriptor of a folder, or None if it is gone."""
    try:
        descriptor = os.open(name, FOLDER_FLAGS, dir_fd=here)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def find_entry(here: int, name: str) -> os.stat_result | None:
    """The status of an entry. None if it is missing, a link, a file or another user's."""
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(name, dir_fd=here, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            return found
    return None


def measure_bytes(folder: Path) -> int:
    """Adds up the sizes of all files below a folder. A file that vanishes in between counts 0."""
    total = 0
    for folder_path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder_path, name)).st_size
    return total
