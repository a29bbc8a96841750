"""Files and folders that are whole or absent.

Everything is written under a temporary name in the folder where it will live and then renamed, so that a reader, a
retry or a power cut never meets a half of it.
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
    """Writes a file by rename, on disk before it has its name. The umask takes away from `mode`.

    Raises:
      MachineError: the disk refused it (full, read-only); nothing is left behind.
    """
    with _written_beside(path, os.replace, mode) as file:
        file.write(data)


def whole_file(path: Path) -> contextlib.AbstractContextManager[IO[bytes]]:
    """As `write_whole`, for what is too large to be held as bytes: a file that gets its name when the block ends well."""
    return _written_beside(path, os.replace)


def create_whole(path: Path, data: bytes) -> None:
    """As `write_whole`, for a file that is written once: of two who write it at the same time, one is refused.

    Raises:
      FileExistsError: there is one already.
      MachineError: the disk refused it.
    """
    with _written_beside(path, name_once) as file:
        file.write(data)


@contextlib.contextmanager
def _written_beside(path: Path, give_name: Callable[[Path, Path], None],
                    mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file under a temporary name, which gets its own once it is on disk; nothing is left of it otherwise."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}.tmp")  # two threads may write the same file
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
    """Writes JSON by rename: two-space indent, in the order given, closed by a newline.

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
    """The parsed content, or None where there is no such file."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def staging_folder(final: Path) -> Iterator[Path]:
    """An empty folder beside `final` that takes its name when the block ends well, and is removed when it does not.

    The rename is atomic and refuses to replace a folder that is not empty. The caller holds a lock over `final`, so what
    is found of earlier stagings was left by a writer that was killed, and is removed.

    Raises:
      FileExistsError: `final` has come into being meanwhile.
      MachineError: the disk failed.
    """
    staging = final.with_name(f".{final.name}.{os.getpid()}.{secrets.token_hex(4)}.staging")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with opened_folder(final.parent) as parent:
            _remove_leftovers(final.name, parent)  # first, because they may fill the disk
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
    """The file that an error of the disk names, unless it names the staging, which nobody would look for."""
    named = isinstance(error.filename, str | os.PathLike) and Path(error.filename)
    return named if named and named.is_absolute() and named != staging else None


def remove_stagings(folder: Path) -> None:
    """Removes all that killed writers have left in a folder. For a caller that lets nobody else write there."""
    with opened_folder(folder) as parent:
        _remove_leftovers(None, parent)


def remove_own(folder: Path) -> None:
    """Removes a folder that this program has made, if it is there; a link or another user's folder is reported and stays."""
    with contextlib.suppress(FileNotFoundError), opened_folder(folder.parent) as parent:
        remove_folder(folder.name, parent, owners_below(parent))


def remove_by_rename(folder: Path) -> None:
    """Removes a folder so that no reader meets it half removed; what a kill leaves of it goes with the stagings.

    A folder that is not there is none to remove; a link or another user's folder is reported and stays.
    """
    with contextlib.suppress(FileNotFoundError), opened_folder(folder.parent) as parent:
        if is_own_folder(folder.name, parent, owners_below(parent)):
            doomed = f".{folder.name}.{os.getpid()}.{secrets.token_hex(4)}.staging"
            os.rename(folder.name, doomed, src_dir_fd=parent, dst_dir_fd=parent)
            remove_folder(doomed, parent, owners_below(parent))


def _remove_leftovers(final: str | None, parent: int) -> None:
    """Removes the stagings of one folder, or of every folder."""
    name = re.escape(final) if final else "[^/]+"
    pattern = re.compile(rf"\.{name}\.[0-9]+(\.[0-9a-f]+)?\.staging")
    for leftover in os.listdir(parent):
        if pattern.fullmatch(leftover):
            remove_folder(leftover, parent, owners_below(parent))


def copy_file(source: Path, target: Path) -> None:
    """Copies a file's content into a new file, on disk when this returns; folders on the way are made.

    Raises:
      MachineError: the disk refused it.
    """
    with open(source, "rb") as reader:
        write_blocks(blocks_of(reader), target)


def write_blocks(blocks: Iterable[bytes], target: Path) -> None:
    """Writes a content that comes in blocks into a new file, on disk when this returns; folders on the way are made.

    Raises:
      MachineError: the disk refused it.
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
    """Gives a file that nobody will ever change a second name; copies it where the disk has no such links, or none to there.

    Raises:
      MachineError: the disk refused it.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise could_not_write(target, error) from error
        copy_file(source, target)


def could_not_write(path: Path, error: OSError) -> MachineError:
    """The error of a file that the disk has refused."""
    return MachineError(f"could not write {path}: {error.strerror}; make room or mend the disk, then retry")


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
def exclusive_lock(path: Path, what: str, wait_seconds: float = 0.0,
                   on_wait: Callable[[str], None] = lambda message: None) -> Iterator[None]:
    """Holds a lock file for as long as the block runs; the kernel frees it if this process dies, however it dies.

    The holder writes its pid into the file, so that the one who is refused can be told.

    Args:
      path: the lock file.
      what: the thing that it protects, for messages.
      wait_seconds: how long to wait for another holder.
      on_wait: called once, with the reason, if there is another holder.

    Raises:
      MachineError: another process holds it, and still does after `wait_seconds`; or there can be no lock on this file.
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
    """A link in its place is refused, since the pid would be written into what it leads to."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return open(os.open(path, flags, 0o666), "a+")  # noqa: SIM115 (the caller closes it)
    except OSError as error:
        raise MachineError(f"could not open the lock file {path}: {error.strerror}; mend the disk, or remove what is in its place, then retry") \
            from error


def _try_lock(file: IO, path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise MachineError(f"could not lock {path}: {error.strerror}; its file system must have flock") from error
    return True
