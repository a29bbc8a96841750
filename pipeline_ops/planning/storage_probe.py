"""Checks that the file system of a storage root supports locks, renames and flushes.

A file system that lacks one of them is refused before a job has worked for hours.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.storage.local_files import UnsafePath, remove_own_folder
from pipeline_ops.storage.open_store import is_remote
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.lease import check_conditions

_UNSUPPORTED_ERRNOS = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EPERM)
"""The error numbers of a missing function. Others point to a bad disk."""


def check_storage(config: PipelineConfig) -> None:
    """Tries the storage root and a registry in a folder, if they exist.

    Raises:
      ConfigError: a file system lacks a function, or a bucket cannot be used.
      MachineError: a bucket can't be reached.
    """
    key = f"{config.locate(('storage', 'root'))}: storage.root"
    if config.root.is_local:
        _check(key, config.root.local)
    else:
        _check_bucket(key, config.root)
    if config.export.registry and not is_remote(config.export.registry):
        key = f"{config.locate(('export', 'registry'))}: export.registry"
        _check(key, config.resolve_path(config.export.registry))


def _check_bucket(key: str, root: StorePath) -> None:
    """Raises ConfigError if a bucket is missing, denies access or has no conditional writes."""
    probe, content = root / f".probe.{secrets.token_hex(8)}", b""
    try:
        probe.create(b"first")
        with contextlib.suppress(FileNotFoundError, UnsafePath, MachineError):
            content = probe.read(max_bytes=5)
        if content != b"first":
            raise ConfigError(
                f"{root}: the server there is no object store: it accepts a file, and does not "
                "return it. Correct storage.endpoint."
            )
        try:
            check_conditions(root, lambda: probe.create(b"second"))
        finally:
            probe.remove()
    except (ConfigError, MachineError) as error:
        raise type(error)(f"{key}: {error.problem}", error.cure) from None


def _check(key: str, root: Path) -> None:
    folder = root / f".probe.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        folder.mkdir()
    except OSError:
        return  # not there yet, or not writable for this user: the job that writes there reports it
    missing = []
    try:
        for name, probe in _PROBES.items():
            try:
                problem = probe(folder)
            except OSError as error:
                problem = (error.strerror or "") if error.errno in _UNSUPPORTED_ERRNOS else ""
            missing += [f"{name} ({problem})"] if problem else []
    finally:
        remove_own_folder(folder)
    if missing:
        raise ConfigError(
            f"{key}: the file system of {root} lacks {', '.join(missing)}. Name a folder "
            "on a local disk, on NFS 4, or on another file system that has it."
        )


def _probe_flock(folder: Path) -> str:
    with open(folder / "lock", "w") as first, open(folder / "lock", "w") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return ""
    return "two hold the same lock"


def _probe_file_rename(folder: Path) -> str:
    (folder / "old").write_bytes(b"old")
    (folder / "new").write_bytes(b"new")
    os.rename(folder / "new", folder / "old")
    return "" if (folder / "old").read_bytes() == b"new" else "the old file is still there"


def _probe_folder_rename(folder: Path) -> str:
    for name in ("full", "other"):
        (folder / name).mkdir()
        (folder / name / "file").touch()
    try:
        os.rename(folder / "other", folder / "full")
    except OSError as error:
        is_refused = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
        return "" if is_refused else error.strerror or "refused"
    return "a folder that is not empty is replaced"


def _probe_fsync(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return ""


_PROBES: dict[str, Callable[[Path], str]] = {
    "flock": _probe_flock,
    "rename of files": _probe_file_rename,
    "rename of folders": _probe_folder_rename,
    "fsync of files": lambda folder: _probe_fsync(folder / "lock"),
    "fsync of folders": _probe_fsync,
}
"""Each tries one function in a folder, and returns the problem or ""."""
