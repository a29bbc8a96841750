"""What a host keeps on its own disk so as not to fetch or to make it again: staged shards, decoded images, proofs of checksums.

Everything here can be made again. An entry is a folder, whole or absent, made by one process while the others of this
host wait; whoever uses it holds a shared lock on it until its process ends, however it ends, and what nobody holds is
removed, the oldest first, when there is too much.

    <folder>/<kind>-<digest>/          an entry
    <folder>/.<kind>-<digest>.lock     held exclusively while it is made or removed
    <folder>/.<kind>-<digest>.use      held shared while it is used
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

from pipeline_ops.contracts.files import exclusive_lock, staging_folder

_held: dict[Path, IO] = {}
"""The locks of what this process uses; the kernel frees them when it ends."""

_WAIT_SECONDS = 24 * 3600.0
"""The job's own deadline ends a wait that takes too long."""


class HostCache:
    """The entries of one folder.

    Args:
      folder: on a disk of this host; made if it is not there.
      limit_bytes: what entries that nobody uses may take.
    """

    def __init__(self, folder: Path, limit_bytes: int):
        self._folder, self._limit_bytes = folder.expanduser(), limit_bytes

    def entry(self, kind: str, digest: str, fill: Callable[[Path], None]) -> Path:
        """The folder of an entry, which `fill` makes where it is not there yet. In use from now on.

        Raises:
          MachineError: the disk failed. Whatever `fill` raises; nothing is left of its work then.
        """
        name = f"{kind}-{digest}"
        final = self._folder / name
        with exclusive_lock(self._folder / f".{name}.lock", f"{final}, which is being made by another process,", _WAIT_SECONDS):
            self._hold(name)
            if not final.exists():
                with staging_folder(final) as staging:
                    fill(staging)
            os.utime(final)
        self._remove_unused()
        return final

    def _hold(self, name: str) -> None:
        path = self._folder / f".{name}.use"
        if path not in _held:
            _held[path] = open(path, "a")  # noqa: SIM115 (it stays open)
            fcntl.flock(_held[path], fcntl.LOCK_SH)

    def _remove_unused(self) -> None:
        entries = sorted((path for path in self._folder.iterdir() if path.is_dir() and not path.name.startswith(".")), key=_modified, reverse=True)
        total = 0
        for entry in entries:
            total += _num_bytes(entry)
            if total > self._limit_bytes:
                self._remove_if_unused(entry)

    def _remove_if_unused(self, entry: Path) -> None:
        with open(self._folder / f".{entry.name}.use", "a") as used:
            try:
                fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            doomed = entry.with_name(f".{entry.name}.{os.getpid()}.staging")  # a name that the next maker cleans up, should this process die
            try:
                os.rename(entry, doomed)
            except FileNotFoundError:  # another process was faster
                return
            shutil.rmtree(doomed, ignore_errors=True)


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _num_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
