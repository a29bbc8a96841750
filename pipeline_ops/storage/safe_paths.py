"""Relative paths from outside a process: parsed once, and opened below a root without links.

The author of a config chooses the root. It is trusted, and may be a symbolic link itself. Nothing
below it is trusted: a path comes from a manifest, a record or a database, and its entry may be a
link, a pipe or a file of any size.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated

from pydantic import AfterValidator

from pipeline_ops.errors import DataError

MAX_PATH = 1024
"""The maximum length of a relative path, in characters."""
_MAX_NAME_BYTES = 255
_FORBIDDEN, _SURROGATE = re.compile(r"[\x00-\x1f\x7f\\]"), re.compile("[\ud800-\udfff]")
_SYS_OPENAT2 = 437  # the same number on every architecture
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x02, 0x04, 0x08
_RESOLVE = _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH
_NO_OPENAT2 = (errno.ENOSYS, errno.EPERM, errno.EAGAIN)
"""Errors of an old kernel, a sandbox, or a race with a rename."""
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a pipe must not block
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LINK_ERRORS = (errno.ELOOP, errno.EXDEV, errno.ENOTDIR, errno.ENXIO)
_libc = ctypes.CDLL(None, use_errno=True)


class UnsafePath(DataError, ValueError):
    """A path that leaves its root, or an entry that is not a regular file as required.

    It is also a ValueError, so that pydantic reports it with the field's name.
    """


def parse_relative_path(text: str) -> str:
    """Returns a path that stays below the folder it is joined to, in its only spelling.

    Raises:
      UnsafePath: the path is absolute, has `..`, `.` or empty parts, a backslash or a control
        character, or is too long.
    """
    if reason := _find_path_problem(text):
        raise UnsafePath(f"{text[:200]!r} is not a usable relative path: {reason}")
    return text


RelativePath = Annotated[str, AfterValidator(parse_relative_path)]
"""A field of a pydantic model that holds such a path."""


def _find_path_problem(text: str) -> str | None:
    if not 0 < len(text) <= MAX_PATH:
        return f"it has {len(text)} characters, and 1 to {MAX_PATH} are allowed"
    if _FORBIDDEN.search(text):
        return "it has a control character or a backslash"
    if _SURROGATE.search(text):
        return "it is not valid Unicode"
    if text.startswith("/"):
        return "it is absolute"
    if not {"", ".", ".."}.isdisjoint(text.split("/")):
        return "it has a part that is empty, '.' or '..'"
    if max(map(len, text.encode().split(b"/"))) > _MAX_NAME_BYTES:
        return f"it has a part of more than {_MAX_NAME_BYTES} bytes"
    return None


@contextlib.contextmanager
def open_below(root: Path, path: str, max_bytes: int | None = None) -> Iterator[IO[bytes]]:
    """Opens a regular file below a root for reading.

    Args:
      root: a folder that is trusted.
      path: relative to the root, checked here.
      max_bytes: the largest size that is accepted.

    Raises:
      UnsafePath: the path leaves the root or passes a link, it names no regular file, or the file
        is too large.
      FileNotFoundError: there is no such file.
    """
    descriptor = _open(root, parse_relative_path(path), _READ)
    try:
        _check_regular(os.fstat(descriptor), root / path, max_bytes)
        with open(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read_below(root: Path, path: str, max_bytes: int) -> bytes:
    """The content of a regular file below a root. Raises the errors of `open_below`."""
    with open_below(root, path, max_bytes) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise UnsafePath(f"{root / path} grew beyond {max_bytes} bytes while it was read")
    return content


@contextlib.contextmanager
def open_folder_below(root: Path, path: str) -> Iterator[int]:
    """The descriptor of a folder below a root, for the functions of `os` that take a `dir_fd`.

    Raises:
      UnsafePath: the path leaves the root or passes a link, or it names no folder.
      FileNotFoundError: there is no such folder.
    """
    descriptor = _open(root, parse_relative_path(path), _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_below(root: Path, path: str, content: bytes, mode: int = 0o600) -> None:
    """Writes a file by rename into an existing folder below the root.

    Raises:
      UnsafePath: the folder is reached through a link, or is not a folder.
      OSError: the folder is missing, or the disk refused the file.
    """
    folder, _, name = parse_relative_path(path).rpartition("/")
    temporary = f".{name[:200]}.{secrets.token_hex(4)}.tmp"
    with open_folder_below(root, folder) if folder else open_folder(root) as parent:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(temporary, flags, mode, dir_fd=parent), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=parent)
            raise


def _check_regular(found: os.stat_result, path: Path, max_bytes: int | None) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UnsafePath(f"{path} is not a regular file. Remove it.")
    if max_bytes is not None and found.st_size > max_bytes:
        raise UnsafePath(f"{path} has {found.st_size} bytes. At most {max_bytes} are allowed.")


@contextlib.contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    """The descriptor of a trusted folder, for the functions of `os` that take a `dir_fd`."""
    descriptor = os.open(folder, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open(root: Path, path: str, flags: int) -> int:
    """Raises UnsafePath if the path passes a link or a file, and otherwise the system's OSError."""
    with open_folder(root) as start:
        try:
            try:
                return open_by_openat2(start, path, flags)
            except OSError as error:
                if error.errno not in _NO_OPENAT2:
                    raise
            return open_by_walking(start, path, flags)
        except OSError as error:
            if error.errno in _LINK_ERRORS:
                raise UnsafePath(
                    f"{root / path} is a link or is reached through one, or it is of "
                    f"the wrong kind: {error.strerror}. Remove it."
                ) from None
            raise type(error)(error.errno, error.strerror, str(root / path)) from None


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_by_openat2(start: int, path: str, flags: int) -> int:
    """Opens a path below a folder by one system call (Linux 5.6 or later). Raises OSError."""
    how = _OpenHow(flags | os.O_NOFOLLOW, 0, _RESOLVE)
    number: int = _libc.syscall(
        _SYS_OPENAT2, start, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)
    )
    if number < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return number


def open_by_walking(start: int, path: str, flags: int) -> int:
    """Opens a path below a folder part by part. No part may be a link. Raises OSError."""
    *folders, name = path.split("/")
    current = os.dup(start)
    try:
        for folder in folders:
            child = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = child
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=current)
    finally:
        os.close(current)
