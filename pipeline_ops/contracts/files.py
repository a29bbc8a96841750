"""Files and folders that are whole or absent.

Everything is written under a temporary name in the folder where it will live and then renamed, so that a reader, a
retry or a power cut never meets a half of it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import google_crc32c

from pipeline_ops.contracts.errors import MachineError

_READ_BYTES = 1 << 20
_LOCK_POLL_SECONDS = 0.05
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file by rename, on disk before it has its name.

    Raises:
      MachineError: the disk refused it (full, read-only); nothing is left behind.
    """
    with whole_file(path) as file:
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
    with _written_beside(path, os.link) as file:
        file.write(data)


@contextlib.contextmanager
def _written_beside(path: Path, give_name: Callable[[Path, Path], None]) -> Iterator[IO[bytes]]:
    """A file under a temporary name, which gets its own once it is on disk; nothing is left of it otherwise."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}.tmp")  # two threads may write the same file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        give_name(temporary, path)
    except FileExistsError:
        raise
    except OSError as error:
        raise _could_not_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_json(path: Path, value: Any) -> None:
    """Writes JSON by rename: two-space indent, in the order given, closed by a newline."""
    write_whole(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The parsed content, or None where there is no such file."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def crc32c_of(path: Path) -> str:
    """CRC32C of a file's bytes, as eight hex digits."""
    checksum = google_crc32c.Checksum()
    with open(path, "rb") as file:
        while block := file.read(_READ_BYTES):
            checksum.update(block)
    return checksum.digest().hex()


@contextlib.contextmanager
def staging_folder(final: Path) -> Iterator[Path]:
    """An empty folder beside `final` that takes its name when the block ends well, and is removed when it does not.

    The rename is atomic and refuses to replace a folder that is not empty. The caller holds a lock over `final`, so what
    is found of earlier stagings was left by a writer that was killed, and is removed.

    Raises:
      FileExistsError: `final` has come into being meanwhile.
      MachineError: the disk failed.
    """
    remove_leftovers(final)
    staging = final.with_name(f".{final.name}.{os.getpid()}.staging")
    try:
        staging.mkdir(parents=True)
        yield staging
        _rename_folder(staging, final)
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            raise _could_not_write(final, error) from error
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def remove_leftovers(final: Path) -> None:
    """Removes what killed writers of a folder have left beside it. For the holder of the lock over `final`."""
    for leftover in final.parent.glob(f".{glob.escape(final.name)}.*.staging"):
        shutil.rmtree(leftover, ignore_errors=True)


def copy_file(source: Path, target: Path) -> None:
    """Copies a file's content into a new file, on disk when this returns; folders on the way are made.

    Raises:
      MachineError: the disk refused it.
    """
    with open(source, "rb") as reader:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "xb") as writer:
                shutil.copyfileobj(reader, writer, _READ_BYTES)
                writer.flush()
                os.fsync(writer.fileno())
        except OSError as error:
            raise _could_not_write(target, error) from error


def link_file(source: Path, target: Path) -> None:
    """Gives a file that nobody will ever change a second name; copies it where the disk has no such links, or none to there.

    Raises:
      MachineError: the disk refused it.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise _could_not_write(target, error) from error
        copy_file(source, target)


def _could_not_write(path: Path, error: OSError) -> MachineError:
    return MachineError(f"could not write {path}: {error.strerror}; make room or mend the disk, then retry")


def _rename_folder(source: Path, target: Path) -> None:
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, "exists already", str(target)) from error
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def exclusive_lock(path: Path, what: str, wait_seconds: float = 0.0) -> Iterator[None]:
    """Holds a lock file for as long as the block runs; the kernel frees it if this process dies, however it dies.

    The holder writes its pid into the file, so that the one who is refused can be told.

    Raises:
      MachineError: another process holds it, and still does after `wait_seconds`.
    """
    deadline = time.monotonic() + wait_seconds
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as file:
        while not _try_lock(file):
            if time.monotonic() > deadline:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise MachineError(f"{what} is held by process {holder} ({path}); wait for it, or end it, and retry")
            time.sleep(_LOCK_POLL_SECONDS)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _try_lock(file: IO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
