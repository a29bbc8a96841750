"""The disk cache of a host: staged shards, decoded images and proofs of checksums.

Every entry can be made again. An entry is a folder, whole or absent. One process makes it while the
others of this host wait. Each user of an entry holds a shared lock on it until its process ends in
any way. If the cache is too large, entries without a holder are removed, the oldest first.

    <local folder>/trainyard-cache/<user id>/    private to the user
        <kind>-<digest>/                         an entry
        .<kind>-<digest>.lock                    held exclusively while it is made or removed
        .<kind>-<digest>.use                     held shared while it is used

Nothing else in the local folder is read, counted or removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.atomic import exclusive_lock, staging_folder
from pipeline_ops.storage.own_folders import private_folder, remove_folder, report_foreign

_held: dict[Path, IO] = {}
"""The locks of the entries that this process uses. The kernel releases them when it ends."""

KINDS = ("checked", "dataset", "offsets", "parsed")
_ENTRY = re.compile(f"({'|'.join(KINDS)})-[0-9a-f]+")
_CURE = "remove it, or name another train.input.local_folder"
_WAIT_SECONDS = 24 * 3600.0
"""The maximum wait for another maker. The job's own deadline ends a wait that takes too long."""


class HostCache:
    """The entries of this user in one local folder.

    Args:
      local_folder: a folder on a disk of this host, created if it is missing.
      limit_bytes: the maximum size of unused entries.
    """

    def __init__(self, local_folder: Path, limit_bytes: int):
        self._shared = local_folder.expanduser() / "trainyard-cache"
        self._folder, self._limit_bytes = self._shared / str(os.geteuid()), limit_bytes

    def entry(self, kind: str, digest: str, fill: Callable[[Path], None]) -> Path:
        """Returns the folder of an entry, which `fill` creates if it is missing.

        This process uses the entry from now on.

        Args:
          kind: one of KINDS.
          digest: hex digits.
          fill: writes the entry into an empty folder.

        Raises:
          MachineError: the disk failed, or the cache is not private to this user.

        An error of `fill` is passed on, and its output is removed.
        """
        name = f"{kind}-{digest}"
        if not _ENTRY.fullmatch(name):
            raise ValueError(
                f"{name} is not a name of an entry: <one of {', '.join(KINDS)}>-<hex digits>"
            )
        final = self._folder / name
        self._make_folder()
        with private_folder(self._folder, _CURE) as here:
            with exclusive_lock(
                self._folder / f".{name}.lock",
                f"{final}, which is being made by another process,",
                _WAIT_SECONDS,
            ):
                self._hold(name)
                if not _is_own(here, name):
                    with staging_folder(final) as staging:
                        fill(staging)
                os.utime(name, dir_fd=here, follow_symlinks=False)
            self._remove_unused(here)
        return final

    def _make_folder(self) -> None:
        """Creates the cache folder.

        The shared parent is as open as the local folder, so that each user of it has a cache.
        """
        try:
            self._shared.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self._shared.mkdir()
                if self._shared.parent.stat().st_mode & stat.S_IWOTH:
                    self._shared.chmod(0o1777)
            with contextlib.suppress(FileExistsError):
                self._folder.mkdir(mode=0o700)
        except OSError as error:
            raise MachineError(
                f"could not make {self._folder}: {error.strerror}; "
                "make it, or name another train.input.local_folder"
            ) from error

    def _hold(self, name: str) -> None:
        path = self._folder / f".{name}.use"
        if path not in _held:
            _held[path] = open(path, "a")  # noqa: SIM115 (it stays open)
            fcntl.flock(_held[path], fcntl.LOCK_SH)

    def _remove_unused(self, here: int) -> None:
        total = 0
        for name in self._entries(here):
            total += _num_bytes(self._folder / name)
            if total > self._limit_bytes:
                self._remove_if_unused(here, name)

    def _entries(self, here: int) -> list[str]:
        """The names of this user's entries, the newest first. Reports other visible entries."""
        found = {}
        for name in os.listdir(here):
            if _ENTRY.fullmatch(name) and _is_own(here, name):
                found[name] = _modified(here, name)
            elif not name.startswith("."):
                report_foreign(str(self._folder / name))
        return sorted(found, key=lambda name: found[name], reverse=True)

    def _remove_if_unused(self, here: int, name: str) -> None:
        with open(self._folder / f".{name}.use", "a") as used:
            try:
                fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            # A name that the next maker cleans up if this process dies.
            doomed = f".{name}.{os.getpid()}.staging"
            try:
                os.rename(name, doomed, src_dir_fd=here, dst_dir_fd=here)
            except FileNotFoundError:  # another process was faster
                return
            remove_folder(doomed, here, {os.geteuid()})


def _is_own(here: int, name: str) -> bool:
    """Returns whether the entry exists and is a folder, not a link or a file."""
    try:
        found = os.stat(name, dir_fd=here, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _modified(here: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=here, follow_symlinks=False).st_mtime_ns
    except FileNotFoundError:
        return 0


def _num_bytes(folder: Path) -> int:
    """Adds up the sizes of all files below a folder. A file that vanishes in between counts 0."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total
