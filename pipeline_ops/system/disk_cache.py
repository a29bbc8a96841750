"""The disk cache of a host: shards, decoded images and proofs of checksums.

Every entry can be made again. An entry is a folder, whole or absent. One process makes it while the
others of this host wait. Each user of an entry holds a shared lock on its folder until it closes
the entry or ends in any way. If the cache is too large, unused entries are removed, oldest first.

    <local folder>/trainyard-cache/<user id>/    private to the user
        <kind>-<digest>/                         an entry
        .<kind>-<two digits>.lock                held exclusively while such an entry is made

Entries that are being made are not counted, so the cache may exceed its limit by one entry for each
process that makes one. Nothing else in the local folder is read, counted or removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import weakref
from collections.abc import Callable
from pathlib import Path

from pipeline_ops.storage.local_files import (
    FOLDER_FLAGS,
    make_write_error,
    open_private_folder,
    remove_own_folder,
    staging_folder,
    warn_unowned_folder,
)
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.system.locks import exclusive_lock, try_lock, wait_for_shared_lock


class CacheEntry:
    """An entry that this process uses, by the shared lock on the open folder `descriptor`."""

    def __init__(self, path: Path, descriptor: int):
        self.path = path
        self.close = weakref.finalize(self, os.close, descriptor)
        """Ends the use. The kernel then releases the lock."""


KINDS = "artifact|checked|code|dataset|offsets|parsed|shard|version|weights"
_ENTRY = re.compile(f"({KINDS})-[0-9a-f]+")
_STAGING = re.compile(rf"\.({_ENTRY.pattern})\.[0-9]+\.[0-9a-f]+\.staging")
_ALTERNATIVE = "set train.input.local_folder to another folder"
_WAIT_SECONDS = 24 * 3600.0
"""The maximum wait for another maker. The job's own deadline ends a wait that takes too long."""

Fill = Callable[[Path], None]
"""A function that writes an entry into an empty folder."""


_kept: dict[Path, CacheEntry] = {}
"""The entries that this process uses until it ends."""


def release_entry(path: Path) -> None:
    """Ends this process's use of an entry of `get_or_create`. Any other folder is ignored."""
    if entry := _kept.pop(path, None):
        entry.close()


class HostCache:
    """The entries of this user in a folder on a disk of this host, created if it is missing.

    Entries in use stay, even beyond the limit. `on_wait` is called with the reason if another
    process is making an entry that this one needs, once for each entry: who waits is not hung.
    """

    def __init__(
        self,
        local_folder: Path,
        limit_bytes: int,
        on_wait: Callable[[str], None] = lambda message: None,
    ):
        self._on_wait = on_wait
        self._shared = local_folder.expanduser() / "trainyard-cache"
        self._folder, self.limit_bytes = self._shared / str(os.geteuid()), limit_bytes

    def get_or_create(self, kind: str, digest: str, fill: Fill) -> Path:
        """Works like `open_entry`. This process uses the entry until it ends or releases it."""
        entry = self.open_entry(kind, digest, fill)
        _kept.setdefault(entry.path, entry)
        return entry.path

    def open_entry(self, kind: str, digest: str, fill: Fill) -> CacheEntry:
        """Returns an entry, which `fill` creates in an empty folder if it is missing.

        `kind` is one of KINDS, and `digest` has hex digits. After an error of `fill`, nothing is
        left. Raises MachineError if the cache is not private to this user.
        """
        path = self._prepare(kind, digest)
        lock = self._get_maker_lock(path.name)
        with exclusive_lock(lock, str(path), _WAIT_SECONDS, self._on_wait):
            entry = _use(path) or _make(path, fill)
        self._make_room(0)
        return entry

    def try_open_entry(
        self, kind: str, digest: str, fill: Fill, num_bytes: int
    ) -> CacheEntry | None:
        """Returns an entry like `open_entry`, but never waits. `num_bytes` is its size.

        None if another process is making the entry, or the cache is full of entries in use.
        """
        path = self._prepare(kind, digest)
        with open(self._get_maker_lock(path.name), "a") as lock:
            is_maker = try_lock(lock.fileno())
            if entry := _use(path):
                return entry
            return _make(path, fill) if is_maker and self._make_room(num_bytes) else None

    def remove_older(self, before: float, is_dry_run: bool = False) -> tuple[int, int]:
        """Removes the entries that were last used before a time, unless a process uses them.

        Returns the number of removed entries, and their bytes. In a dry run, those of old entries.
        """
        num_entries, num_bytes = 0, 0
        if self._folder.is_dir():
            for path in self._list_entries():
                entry = _find_entry(path)
                if entry and entry.st_mtime < before:
                    size = _measure_bytes(path)
                    if is_dry_run or _remove_if_unused(path):
                        num_entries, num_bytes = num_entries + 1, num_bytes + size
        return num_entries, num_bytes

    def _prepare(self, kind: str, digest: str) -> Path:
        """Creates the cache folder, and returns the path of an entry in it.

        The shared parent is as open as the local folder, so that each user of it has a cache.
        """
        name = f"{kind}-{digest}"
        if not _ENTRY.fullmatch(name):
            raise ValueError(
                f"{name} is not the name of a cache entry. Use <one of {KINDS}>-<hex digits>."
            )
        try:
            self._shared.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self._shared.mkdir()
                if self._shared.parent.stat().st_mode & stat.S_IWOTH:
                    self._shared.chmod(0o1777)
            with contextlib.suppress(FileExistsError):
                self._folder.mkdir(mode=0o700)
        except OSError as error:
            raise make_write_error(
                self._folder, error, f"Check its permissions, or {_ALTERNATIVE}."
            ) from error
        with open_private_folder(self._folder, _ALTERNATIVE):
            return self._folder / name

    def _get_maker_lock(self, name: str) -> Path:
        """The lock file of the makers of an entry. Some entries share one: there are 256 a kind."""
        kind, _, digest = name.partition("-")
        return self._folder / f".{kind}-{digest[:2]}.lock"

    def _make_room(self, num_bytes: int) -> bool:
        """Removes unused entries until `num_bytes` more fit. Returns whether they do."""
        for name in filter(_STAGING.fullmatch, os.listdir(self._folder)):
            with open(self._get_maker_lock(name.removeprefix(".").split(".")[0]), "a") as lock:
                if try_lock(lock.fileno()):  # its maker was killed
                    remove_own_folder(self._folder / name)
        entries = self._list_entries()
        sizes = {path: _measure_bytes(path) for path in entries}
        total = num_bytes + sum(sizes.values())
        for path in entries:
            if total <= self.limit_bytes:
                break
            if _remove_if_unused(path):
                total -= sizes[path]
        return total <= self.limit_bytes

    def _list_entries(self) -> list[Path]:
        """This user's entries, the oldest first. Reports other visible entries."""
        found = {}
        with open_private_folder(self._folder, _ALTERNATIVE):
            for path in self._folder.iterdir():
                if _ENTRY.fullmatch(path.name) and (entry := _find_entry(path)):
                    found[path] = entry.st_mtime_ns
                elif not path.name.startswith("."):
                    warn_unowned_folder(str(path))
        return sorted(found, key=found.__getitem__)


def _use(path: Path) -> CacheEntry | None:
    """Locks an entry for use. Returns None if there is none.

    A link, a file or another user's folder of that name is not an entry.
    """
    try:
        descriptor = os.open(path, FOLDER_FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        return None
    entry = CacheEntry(path, descriptor)
    wait_for_shared_lock(descriptor)
    found = _find_entry(path)
    if found is None or found.st_ino != os.fstat(descriptor).st_ino:  # removed before the lock
        entry.close()
        return None
    os.utime(path, follow_symlinks=False)
    return entry


def _make(path: Path, fill: Fill) -> CacheEntry:
    with staging_folder(path) as staging:
        fill(staging)
        # Locked before it gets its name, so that no other process removes it.
        descriptor = os.open(staging, FOLDER_FLAGS)
        entry = CacheEntry(path, descriptor)
        wait_for_shared_lock(descriptor)
    return entry


def _remove_if_unused(path: Path) -> bool:
    try:
        folder = os.open(path, FOLDER_FLAGS)
    except FileNotFoundError:
        return True
    try:
        if is_unused := try_lock(folder):
            open_path(path).remove_tree()
        return is_unused
    finally:
        os.close(folder)


def _find_entry(path: Path) -> os.stat_result | None:
    """The status of an entry. None if it is missing, a link, a file or another user's."""
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            return found
    return None


def _measure_bytes(folder: Path) -> int:
    """Adds up the sizes of all files below a folder. A file that vanishes in between counts 0."""
    total = 0
    for folder_path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder_path, name)).st_size
    return total
