"""Files and folders of this host that are whole or absent, and safe ways to open and remove them.

Everything is written under a temporary name next to its final one, flushed to disk, and then
renamed. A reader, a retry or a power cut therefore never finds half of it.

The author of a config chooses a root. It is trusted, and may be a symbolic link itself. Nothing
below it is trusted: a path comes from a manifest, a record or a database, and its entry may be a
link, a pipe or a file of any size. So it is parsed once, and opened without following links.

Only folders that this program has made are removed. Such a folder is identified by the descriptor
of its parent, its name and its owner. A link, a mount point or another user's folder stays, and a
warning in the log reports it once. Nothing else in this project removes a tree.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import functools
import json
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer

from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.storage.checksums import ChecksumAccumulator, Checksums, read_blocks

MAX_PATH = 1024
"""The maximum length of a relative path, in characters."""
_MAX_NAME_BYTES = 255
_FORBIDDEN, _SURROGATE = re.compile(r"[\x00-\x1f\x7f\\]"), re.compile("[\ud800-\udfff]")
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a pipe must not block
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
FOLDER_FLAGS = _FOLDER | os.O_NOFOLLOW
_LINK_ERRORS = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO)
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)
"""Errors of `link` if the file system has no hard links, or none between the two locations."""
_NO_RENAME_FLAGS = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)
_RENAME_EXCHANGE = 2
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of a disk, which somebody has to repair before a retry helps."""
_COPY_BYTES = 1 << 20
_NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_REMEDIES = {
    errno.EACCES: "Give this user the right to write there, then retry.",
    errno.EEXIST: "Remove the file of that name, then retry.",
    errno.EISDIR: "Remove the folder of that name, then retry.",
    errno.ELOOP: "Remove the link of that name, then retry.",
}
_DISK_REMEDY = "Free disk space or repair the disk, then retry."
_libc = ctypes.CDLL(None, use_errno=True)
_log = logging.getLogger(__name__)


# Errors


class UnsafePath(DataError, ValueError):
    """A path that leaves its root, or an entry that is not a regular file as required.

    It is also a ValueError, so that pydantic reports it with the field's name.
    """


def describe_os_error(error: OSError) -> str:
    """The system's text for an error, for the middle of a sentence: "no space left on device"."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


def make_write_error(path: Path, error: OSError, remedy: str = "") -> MachineError:
    """The error for a file or folder that the disk has refused, by default with its remedy."""
    remedy = remedy or _REMEDIES.get(error.errno or 0, _DISK_REMEDY)
    return MachineError(f"cannot write {path}: {describe_os_error(error)}. {remedy}")


@contextlib.contextmanager
def translate_write_errors(path: Path) -> Iterator[None]:
    """Names the file in errors of calls that know only its descriptor. Raises MachineError."""
    try:
        yield
    except OSError as error:
        raise make_write_error(path, error) from error


# Paths below a root


def parse_relative_path(text: str) -> str:
    """Returns a path that stays below the folder it is joined to, in its only spelling.

    Raises UnsafePath if it is absolute, has `..`, `.` or empty parts, a backslash or a control
    character, or is too long.
    """
    if reason := _find_path_problem(text):
        raise UnsafePath(f"{text[:200]!r} is not a usable relative path: {reason}")
    return text


RelativePath = Annotated[str, AfterValidator(parse_relative_path)]
"""A field of a pydantic model that holds such a path."""

EncodedBytes = Annotated[
    bytes,
    BeforeValidator(lambda value: base64.b64decode(value) if isinstance(value, str) else value),
    PlainSerializer(lambda value: base64.b64encode(value).decode(), when_used="json"),
]
"""A field of a pydantic model that holds the content of a file. In JSON it is base64."""


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
    """Opens a regular file below a trusted root for reading.

    Raises:
      UnsafePath: the path leaves the root or passes a link, it names no regular file, or the file
        has more than `max_bytes`.
      FileNotFoundError: there is no such file.
    """
    with _open(root, path, _READ) as descriptor:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UnsafePath(f"{root / path} is not a regular file. Remove it.")
        if max_bytes is not None and found.st_size > max_bytes:
            raise UnsafePath(
                f"{root / path} has {found.st_size} bytes. At most {max_bytes} are allowed."
            )
        with open(descriptor, "rb", closefd=False) as file:
            yield file


def open_folder(root: Path, path: str = "") -> contextlib.AbstractContextManager[int]:
    """The descriptor of a trusted root or of a folder below it, for functions with a `dir_fd`.

    Raises UnsafePath and FileNotFoundError like `open_below`.
    """
    return _open(root, path, _FOLDER)


@contextlib.contextmanager
def _open(root: Path, path: str, flags: int) -> Iterator[int]:
    """Opens a path part by part. Raises UnsafePath if a part is a link or not of its kind."""
    parts = parse_relative_path(path).split("/") if path else []
    opened = os.open(root, _FOLDER)
    try:
        try:
            for number, part in enumerate(parts, 1):
                part_flags = (flags if number == len(parts) else _FOLDER) | os.O_NOFOLLOW
                child = os.open(part, part_flags, dir_fd=opened)
                os.close(opened)
                opened = child
        except OSError as error:
            if error.errno in _LINK_ERRORS:
                raise UnsafePath(
                    f"{root / path} is a link or is reached through one, or it is of "
                    f"the wrong kind: {error.strerror}. Remove it."
                ) from None
            raise type(error)(error.errno, error.strerror, str(root / path)) from None
        yield opened
    finally:
        os.close(opened)


# Files that are whole or absent


@contextlib.contextmanager
def open_new_below(
    root: Path, path: str, mode: int = 0o666, must_be_new: bool = False
) -> Iterator[IO[bytes]]:
    """Opens a file below a trusted root that gets its name when the block ends without an error.

    Its data are on disk by then. Missing folders are made. `mode` is reduced by the umask. If the
    file `must_be_new`, one of several writers at the same time succeeds.

    Raises:
      UnsafePath: the path leaves the root or passes a link.
      FileExistsError: the file must be new, and the name is taken.
      MachineError: the disk refused the file (full, read-only). No part of it is left.
    """
    folder, _, name = parse_relative_path(path).rpartition("/")
    # Threads, and processes of other hosts, may write the same file.
    temporary = f".{name[:200]}.{secrets.token_hex(4)}.tmp"
    is_taken = False
    with translate_write_errors(root / path), open_or_make_folder(root, folder) as parent:
        try:
            with open(os.open(temporary, _CREATE, mode, dir_fd=parent), "wb") as file:
                yield file
                _flush_to_disk(file)
            if must_be_new:
                is_taken = not link_exclusively(temporary, name, parent)
            else:
                os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=parent)
    if is_taken:
        raise FileExistsError(errno.EEXIST, "exists already", str(root / path))


@contextlib.contextmanager
def open_or_make_folder(root: Path, path: str) -> Iterator[int]:
    """Opens a folder like `open_folder`, and makes it if it is missing."""
    with contextlib.ExitStack() as stack:
        try:
            opened = stack.enter_context(open_folder(root, path))
        except FileNotFoundError:
            (root / path).mkdir(parents=True, exist_ok=True)
            opened = stack.enter_context(open_folder(root, path))
        yield opened


def link_exclusively(temporary: str, name: str, parent: int) -> bool:
    """Gives a finished file a name that no other file in its folder has. Returns False if one has.

    A hard link is the usual way. exFAT, SMB and many FUSE file systems have no links. There, the
    name is created exclusively, and a reader may find an empty file for a moment. The temporary
    name may remain.
    """
    try:
        os.link(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        return True
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    try:
        descriptor = os.open(name, _CREATE, 0o666, dir_fd=parent)
    except FileExistsError:
        return False
    try:
        with (
            open(os.open(temporary, _READ, dir_fd=parent), "rb") as reader,
            open(descriptor, "wb") as writer,
        ):
            shutil.copyfileobj(reader, writer, _COPY_BYTES)
            _flush_to_disk(writer)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=parent)
        raise
    return True


def exchange_names(name: str, other: str, parent: int) -> bool:
    """Gives two entries of an open folder each other's name, in one step.

    Returns False if the file system cannot do that, and has done nothing. Raises MachineError for
    another error.
    """
    names = os.fsencode(name), os.fsencode(other)
    if not _libc.renameat2(parent, names[0], parent, names[1], _RENAME_EXCHANGE):
        return True
    if (number := ctypes.get_errno()) not in _NO_RENAME_FLAGS:
        error = OSError(number, os.strerror(number))
        raise make_write_error(Path(get_descriptor_path(parent), other), error)
    return False


def _flush_to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def write_atomically(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Writes a small file like `open_new_below`, in a trusted folder."""
    with open_new_below(path.parent, path.name, mode) as file:
        file.write(data)


def write_json(path: Path, value: Any, mode: int = 0o666) -> None:
    """Writes JSON by rename, as `format_json` formats it."""
    write_atomically(path, format_json(value), mode)


def format_json(value: Any) -> bytes:
    """Formats JSON with a two-space indent, in the given order, and with a final newline.

    A float that is not a number becomes the text "NaN", "Infinity" or "-Infinity".
    """
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(replace_non_finite(value), indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode(errors="replace")


def replace_non_finite(value: Any) -> Any:
    """Returns a JSON value with a text for each float that is not finite."""
    if isinstance(value, dict):
        return {key: replace_non_finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(inner) for inner in value]
    return _NON_FINITE.get(float.__repr__(value), value) if isinstance(value, float) else value


def read_json(path: Path) -> Any:
    """Returns the parsed content, or None if there is no such file."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def copy_file(source: Path, target: Path) -> None:
    """Copies a file's content into a new file, like `write_blocks`."""
    with open(source, "rb") as reader:
        write_blocks(read_blocks(reader), target)


def write_blocks(blocks: Iterable[bytes], target: Path) -> Checksums:
    """Writes blocks of content into a new file, which is on disk when this returns.

    Makes missing folders. Returns the checksums. Raises MachineError if the disk refused the file.
    """
    checksums = ChecksumAccumulator()
    with translate_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "xb") as writer:
            for block in blocks:
                writer.write(block)
                checksums.update(block)
            _flush_to_disk(writer)
    return checksums.result


def link_file(source: Path, target: Path) -> None:
    """Gives an immutable file a second name, or copies it where the file system has no hard links.

    Raises MachineError if the disk refused the file.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise make_write_error(target, error) from error
        copy_file(source, target)


# Folders that are whole or absent


@contextlib.contextmanager
def staging_folder(
    final: Path, marker: str | None = None, kept: Path | None = None
) -> Iterator[Path]:
    """Yields a folder next to `final`, which gets its name when the block ends.

    If the block fails, the folder is removed, unless it is `kept`. The rename is atomic and refuses
    to replace a folder that is not empty. The caller holds a lock for `final`. Earlier stagings
    were therefore left by killed writers, and are removed.

    Args:
      final: the folder.
      marker: the file that makes the folder whole. A folder without it, as `withdraw_folder` leaves
        it, is replaced. Without a marker nothing is replaced.
      kept: the folder to fill, on the same disk, with whatever an earlier writer has left in it.
        It is created if it is missing, and stays if the block fails. The default is a new folder.

    Raises:
      FileExistsError: another writer has made `final` in the meantime.
      MachineError: the disk failed.
    """
    staging = kept or final.with_name(_make_staging_name(final.name))
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with open_folder(final.parent) as parent:
            _remove_leftovers(final.name, parent)  # first, because leftovers may fill the disk
            try:
                staging.mkdir(parents=True, exist_ok=kept is not None)
                yield staging
                if marker and not (final / marker).exists():
                    _move_aside(final.name, parent)
                _rename_folder(staging, final, parent)
            finally:
                _remove_leftovers(final.name, parent)
    except OSError as error:
        if error.errno in DISK_ERRORS:
            failed = _find_failed_path(error, staging) or kept or final
            raise make_write_error(failed, error) from error
        raise


def _find_failed_path(error: OSError, staging: Path) -> Path | None:
    """The file that a disk error names, or None for the staging, whose name is internal."""
    named = Path(error.filename) if isinstance(error.filename, str | os.PathLike) else None
    return named if named and named.is_absolute() and named != staging else None


def _rename_folder(source: Path, target: Path, parent: int) -> None:
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, "exists already", str(target)) from error
        raise
    os.fsync(parent)


def _make_staging_name(name: str) -> str:
    return f".{name}.{os.getpid()}.{secrets.token_hex(4)}.staging"


def _move_aside(name: str, parent: int) -> str | None:
    """Gives a folder of ours a staging name, which is returned. A missing one is ignored."""
    with contextlib.suppress(FileNotFoundError):
        if is_own_folder(name, parent):
            staging = _make_staging_name(name)
            os.rename(name, staging, src_dir_fd=parent, dst_dir_fd=parent)
            return staging
    return None


def _remove_leftovers(final: str | None, parent: int) -> None:
    """Removes the stagings of one folder, or of every folder if `final` is None."""
    name = re.escape(final) if final else "[^/]+"
    pattern = re.compile(rf"\.{name}\.[0-9]+(\.[0-9a-f]+)?\.staging")
    for leftover in os.listdir(parent):
        if pattern.fullmatch(leftover):
            remove_folder(leftover, parent)


def remove_staging_folders(folder: Path) -> None:
    """Removes everything that killed writers have left in a folder, where no process may write."""
    with open_folder(folder) as parent:
        _remove_leftovers(None, parent)


def remove_by_rename(name: str, parent: int) -> None:
    """Removes a folder in an open folder so that no reader finds it half removed.

    A missing one is ignored. The leftovers of a killed removal are removed together with the
    stagings. A link or another user's folder is reported and stays.
    """
    if staging := _move_aside(name, parent):
        remove_folder(staging, parent)


def withdraw_folder(folder: Path, marker: str) -> None:
    """Removes the file that makes a folder whole.

    The other files stay for those who still read them, until `staging_folder` replaces the folder.
    A missing folder is ignored. A link or another user's folder is reported and stays.
    """
    with contextlib.suppress(FileNotFoundError), open_folder(folder.parent) as parent:
        if is_own_folder(folder.name, parent):
            with open_folder(folder.parent, folder.name) as opened:
                os.unlink(marker, dir_fd=opened)


# Folders of this program


@contextlib.contextmanager
def open_private_folder(path: Path, alternative: str, forbidden_mode: int = 0o077) -> Iterator[int]:
    """The descriptor of a folder that only this user can read and write.

    With `forbidden_mode=0o022`, others may read it. Raises MachineError for any other folder, a
    link or a file. The `alternative` is what an operator can do instead of removing it.
    """
    try:
        descriptor = os.open(path, FOLDER_FLAGS)
    except NotADirectoryError:
        raise MachineError(
            f"{path} is a link or a file, not a folder of this user. Remove it, or {alternative}."
        ) from None
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise MachineError(
                f"{path} is a folder of the user {found.st_uid}, not of this user. "
                f"Remove it, or {alternative}."
            )
        if mode := stat.S_IMODE(found.st_mode) & forbidden_mode:
            raise MachineError(
                f"{path} is open to other users (mode {mode:03o}), so its content "
                f"can't be trusted. Run chmod 700 on it, or {alternative}."
            )
        yield descriptor
    finally:
        os.close(descriptor)


def remove_own_folder(folder: Path) -> None:
    """Removes a folder like `remove_folder`, by its path."""
    with contextlib.suppress(FileNotFoundError), open_folder(folder.parent) as parent:
        remove_folder(folder.name, parent)


def remove_folder(name: str, parent: int, owners: Collection[int] | None = None) -> None:
    """Removes a folder of ours in an open folder with all its content. A missing one is ignored.

    A link or another user's folder is reported and stays. Entries that can't be removed, such as a
    file that a dying process still writes, are left to the next try. `owners` as in
    `is_own_folder`.
    """
    with contextlib.suppress(FileNotFoundError):
        if is_own_folder(name, parent, owners):
            shutil.rmtree(name, ignore_errors=True, dir_fd=parent)


def is_own_folder(name: str, parent: int, owners: Collection[int] | None = None) -> bool:
    """Returns whether an entry is a folder of one of these users on the same file system.

    The default owners are this user and the owner of the open folder itself: network file systems
    map user ids, so that a new entry belongs to the owner of its parent. Any other entry is
    reported. Raises FileNotFoundError if there is no entry of that name.
    """
    found, folder = os.stat(name, dir_fd=parent, follow_symlinks=False), os.fstat(parent)
    is_folder, is_here = stat.S_ISDIR(found.st_mode), found.st_dev == folder.st_dev
    if is_folder and is_here and found.st_uid in (owners or {os.geteuid(), folder.st_uid}):
        return True
    warn_unowned_folder(os.path.join(get_descriptor_path(parent), name))
    return False


def empty_folder(descriptor: int) -> None:
    """Removes the content of an open folder of ours. Links are removed, and their targets stay."""
    for name in os.listdir(descriptor):
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                shutil.rmtree(name, ignore_errors=True, dir_fd=descriptor)
            else:
                os.unlink(name, dir_fd=descriptor)


@functools.cache  # once for each path
def warn_unowned_folder(path: str) -> None:
    _log.warning(
        "%s is not a folder that this program made for itself. It is left unchanged.", path
    )


def get_descriptor_path(descriptor: int) -> str:
    """The path of an open descriptor, for messages."""
    return os.readlink(f"/proc/self/fd/{descriptor}")
