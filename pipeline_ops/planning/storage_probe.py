"""Checks that the file system of a storage root has the functions that jobs need, by trying them.

Jobs rely on locks, renames and flushes. A file system that lacks one of them is refused before a
job has worked for hours. Hard links are optional. They are used if the file system has them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.atomic import remove_own
from pipeline_ops.storage.object_store import is_remote

_NOT_THERE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EPERM)
"""The error numbers of a missing function. Other errors are those of a bad disk."""


def check_storage(config: PipelineConfig) -> None:
    """Tries the storage root and a registry in a folder, if they exist.

    Raises:
      ConfigError: a file system lacks a function. The message names the key, the folder and the
        function.
    """
    _check("storage.root", config.root)
    if config.export.registry and not is_remote(config.export.registry):
        _check("export.registry", config.path(config.export.registry))


def _check(key: str, root: Path) -> None:
    folder = root / f".probe.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        folder.mkdir()
    except (
        OSError
    ):  # not there yet, or not writable for this user: the job that writes there reports it
        return
    try:
        missing = [
            f"{name} ({problem})"
            for name, attempt in _ATTEMPTS.items()
            if (problem := _problem_of(attempt, folder))
        ]
    finally:
        remove_own(folder)
    if missing:
        raise ConfigError(
            f"{key}: the file system of {root} lacks {', '.join(missing)}; name a folder "
            "on a local disk, on NFS 4, or on another file system that has it"
        )


def _problem_of(attempt: Callable[[Path], str | None], folder: Path) -> str | None:
    try:
        return attempt(folder)
    except OSError as error:
        return error.strerror if error.errno in _NOT_THERE else None


def _lock(folder: Path) -> str | None:
    with open(folder / "lock", "w") as first, open(folder / "lock", "w") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
    return "two hold the same lock"


def _rename_file(folder: Path) -> str | None:
    (folder / "old").write_bytes(b"old")
    (folder / "new").write_bytes(b"new")
    os.rename(folder / "new", folder / "old")
    return None if (folder / "old").read_bytes() == b"new" else "the old file is still there"


def _rename_folder(folder: Path) -> str | None:
    for name in ("full", "other"):
        (folder / name).mkdir()
        (folder / name / "file").touch()
    try:
        os.rename(folder / "other", folder / "full")
    except OSError as error:
        return None if error.errno in (errno.ENOTEMPTY, errno.EEXIST) else error.strerror
    return "a folder that is not empty is replaced"


def _flush_file(folder: Path) -> None:
    with open(folder / "flushed", "wb") as file:
        file.write(b"1")
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_ATTEMPTS: dict[str, Callable[[Path], str | None]] = {
    "flock": _lock,
    "rename of files": _rename_file,
    "rename of folders": _rename_folder,
    "fsync of files": _flush_file,
    "fsync of folders": _flush_folder,
}
