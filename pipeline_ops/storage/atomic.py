"""Files and folders that are whole or absent.

Everything is written under a temporary name in its final folder and then renamed. A reader, a retry
or a power cut therefore never finds half of it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.checksums import blocks_of
from pipeline_ops.storage.file_creation import NO_LINKS, create_or_truncate, name_once
from pipeline_ops.storage.own_folders import is_own_folder, owners_below, remove_folder

_LOCK_POLL_SECONDS, _MAX_LOCK_POLL_SECONDS = 0.05, 2.0
_NOT_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


def write_whole(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Writes a file by rename. Its data are on disk before it gets its name.

    Args:
      path: the file.
      data: its content.
      mode: the permissions, reduced by the umask.

    Raises:
      MachineError: the disk refused the file (full, read-only). No part of it is left.
    """
    with _written_beside(path, os.replace, mode) as file:
        file.write(data)


def whole_file(path: Path) -> contextlib.AbstractContextManager[IO[bytes]]:
    """Opens a file that gets its name when the block ends without an error.

    Works like `write_whole`, for content that is too large for memory.
    """
    return _written_beside(path, os.replace)


def create_whole(path: Path, data: bytes) -> None:
    """Writes a file that is written only once, like `write_whole`.

    If two writers write it at the same time, one of them is refused.

    Raises:
      FileExistsError: the file already exists.
      MachineError: the disk refused the file.
    """
    with _written_beside(path, name_once) as file:
        file.write(data)


@contextlib.contextmanager
def _written_beside(
    path: Path, give_name: Callable[[Path, Path], None], mode: int = 0o666
) -> Iterator[IO[bytes]]:
    """Opens a temporary file that gets its final name once it is on disk.

    If the block or the disk fails, the temporary file is removed.
    """
    temporary = path.with_name(
        f".{path.name}.{os.getpid()}.{threading.get_native_id()}.tmp"
    )  # two threads may write the same file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with create_or_truncate(temporary, mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        give_name(temporary, path)
    except FileExistsError:
        raise
    except OSError as error:
        raise could_not_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_json(path: Path, value: Any, mode: int = 0o666) -> None:
    """Writes JSON by rename, with a two-space indent, in the given order, and with a final newline.

    A float that is not a number becomes the text "NaN", "Infinity" or "-Infinity".
    """
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_spelt(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path, f"{text}\n".encode(errors="replace"), mode)


def _spelt(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _spelt(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_spelt(inner) for inner in value]
    return _NOT_NUMBERS.get(float.__repr__(value), value) if isinstance(value, float) else value


def read_json(path: Path) -> Any:
    """Returns the parsed content, or None if there is no such file."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def staging_folder(final: Path) -> Iterator[Path]:
    """Yields an empty folder next to `final`, which gets its name when the block ends.

    If the block fails, the folder is removed. The rename is atomic and refuses to replace a folder
    that is not empty. The caller holds a lock for `final`. Earlier stagings were therefore left by
    killed writers, and are removed.

    Raises:
      FileExistsError: another writer has made `final` in the meantime.
      MachineError: the disk failed.
    """
    staging = final.with_name(f".{final.name}.{os.getpid()}.{secrets.token_hex(4)}.staging")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with opened_folder(final.parent) as parent:
            _remove_leftovers(final.name, parent)  # first, because leftovers may fill the disk
            try:
                os.mkdir(staging.name, dir_fd=parent)
                yield staging
                _rename_folder(staging, final)
            finally:
                remove_folder(staging.name, parent, owners_below(parent))
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            raise could_not_write(_refused_by(error, staging) or final, error) from error
        raise


def _refused_by(error: OSError, staging: Path) -> Path | None:
    """The file that a disk error names, or None for the staging, whose name is internal."""
    named = isinstance(error.filename, str | os.PathLike) and Path(error.filename)
    return named if named and named.is_absolute() and named != staging else None


def remove_stagings(folder: Path) -> None:
    """Removes everything that killed writers have left in a folder.

    The caller makes sure that no other process writes there.
    """
    with opened_folder(folder) as parent:
        _remove_leftovers(None, parent)


def remove_own(folder: Path) -> None:
    """Removes a folder that this program has made, if it exists.

    A link or another user's folder is reported and stays.
    """
    with contextlib.suppress(FileNotFoundError), opened_folder(folder.parent) as parent:
        remove_folder(folder.name, parent, owners_below(parent))


def remove_by_rename(folder: Path) -> None:
    """Removes a folder so that no reader finds it half removed.

    The leftovers of a killed removal are removed together with the stagings. A missing folder is
    ignored. A link or another user's folder is reported and stays.
    """
    with contextlib.suppress(FileNotFoundError), opened_folder(folder.parent) as parent:
        if is_own_folder(folder.name, parent, owners_below(parent)):
            doomed = f".{folder.name}.{os.getpid()}.{secrets.token_hex(4)}.staging"
            os.rename(folder.name, doomed, src_dir_fd=parent, dst_dir_fd=parent)
            remove_folder(doomed, parent, owners_below(parent))


def _remove_leftovers(final: str | None, parent: int) -> None:
    """Removes the stagings of one folder, or of every folder if `final` is None."""
    name = re.escape(final) if final else "[^/]+"
    pattern = re.compile(rf"\.{name}\.[0-9]+(\.[0-9a-f]+)?\.staging")
    for leftover in os.listdir(parent):
        if pattern.fullmatch(leftover):
            remove_folder(leftover, parent, owners_below(parent))


def copy_file(source: Path, target: Path) -> None:
    """Copies a file's content into a new file, which is on disk when this returns.

    Missing parent folders are created.

    Raises:
      MachineError: the disk refused the file.
    """
    with open(source, "rb") as reader:
        write_blocks(blocks_of(reader), target)


def write_blocks(blocks: Iterable[bytes], target: Path) -> None:
    """Writes blocks of content into a new file, which is on disk when this returns.

    Missing parent folders are created.

    Raises:
      MachineError: the disk refused the file.
    """
    with contextlib.ExitStack() as stack:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            writer = stack.enter_context(open(target, "xb"))
            for block in blocks:
                writer.write(block)
            writer.flush()
            os.fsync(writer.fileno())
        except OSError as error:
            raise could_not_write(target, error) from error


def link_file(source: Path, target: Path) -> None:
    """Gives an immutable file a second name.

    The file is copied if the file system has no hard links, or none between the two places.

    Raises:
      MachineError: the disk refused the file.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise could_not_write(target, error) from error
        copy_file(source, target)


def could_not_write(path: Path, error: OSError) -> MachineError:
    """The error for a file that the disk has refused."""
    return MachineError(
        f"could not write {path}: {error.strerror}; make room or mend the disk, then retry"
    )


@contextlib.contextmanager
def names_file(path: Path) -> Iterator[None]:
    """Names the file in errors of calls that know only its descriptor. Raises MachineError."""
    try:
        yield
    except OSError as error:
        raise could_not_write(path, error) from error


def _rename_folder(source: Path, target: Path) -> None:
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, "exists already", str(target)) from error
        raise
    with opened_folder(target.parent) as parent:
        os.fsync(parent)


@contextlib.contextmanager
def opened_folder(folder: Path) -> Iterator[int]:
    """The descriptor of a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def exclusive_lock(
    path: Path,
    what: str,
    wait_seconds: float = 0.0,
    on_wait: Callable[[str], None] = lambda message: None,
) -> Iterator[None]:
    """Holds a lock file while the block runs.

    The kernel releases the lock when this process ends in any way. The holder writes its pid into
    the file, so that messages can name it.

    Args:
      path: the lock file.
      what: the thing that it protects, for messages.
      wait_seconds: how long to wait for another holder.
      on_wait: called once, with the reason, if there is another holder.

    Raises:
      MachineError: another process still holds the lock after `wait_seconds`, or the file can't be
        locked.
    """
    start, is_told = time.monotonic(), False
    with _opened_lock(path) as file:
        while not _try_lock(file, path):
            file.seek(0)
            held = f"{what} is held by process {file.read(32).strip() or 'unknown'} ({path})"
            waited = time.monotonic() - start
            if waited > wait_seconds:
                raise MachineError(f"{held}; wait for it, or end it, and retry")
            if not is_told:
                is_told = True
                on_wait(f"{held}; waiting for it")
            time.sleep(min(_LOCK_POLL_SECONDS + waited / 10, _MAX_LOCK_POLL_SECONDS))
        with names_file(path):
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield


def _opened_lock(path: Path) -> IO[str]:
    """Opens a lock file. A link is refused, because the pid would be written into its target."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return open(os.open(path, flags, 0o666), "a+")
    except OSError as error:
        raise MachineError(
            f"could not open the lock file {path}: {error.strerror}; "
            "mend the disk, or remove what is in its place, then retry"
        ) from error


def _try_lock(file: IO, path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise MachineError(
            f"could not lock {path}: {error.strerror}; its file system must have flock"
        ) from error
    return True
