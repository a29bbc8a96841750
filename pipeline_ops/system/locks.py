"""Locks between processes of one or more hosts, on an open file or folder (`flock`).

The kernel releases a lock when its holder ends in any way, so no lock outlives a killed process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.atomic import describe_os_error, make_write_error, translate_write_errors
from pipeline_ops.storage.own_folders import get_descriptor_path

_POLL_SECONDS, _MAX_POLL_SECONDS = 0.05, 2.0


class ResourceHeld(MachineError):
    """Another process works on the same thing."""


def try_lock(descriptor: int, is_shared: bool = False, alternative: str = "") -> bool:
    """Locks an open file or folder, unless another process holds a conflicting lock.

    Args:
      descriptor: the open file or folder.
      is_shared: whether other processes may hold a shared lock at the same time.
      alternative: what an operator can do instead if the file system has no locks.

    Returns:
      Whether this process has the lock now.

    Raises:
      MachineError: the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise MachineError(
            f"cannot lock {get_descriptor_path(descriptor)}: {describe_os_error(error)}. "
            f"Use a file system that supports flock{alternative and f', or {alternative}'}."
        ) from error
    return True


def wait_for_shared_lock(descriptor: int) -> None:
    """Locks an open file together with other processes, once no process holds it exclusively."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


@contextlib.contextmanager
def exclusive_lock(
    path: Path,
    resource: str,
    wait_seconds: float = 0.0,
    on_wait: Callable[[str], None] = lambda message: None,
) -> Iterator[None]:
    """Holds a lock file while the block runs.

    The owner writes its pid into the file, so that messages can name it. It may remove the file
    while it holds the lock. A process that waits for it then locks the file that comes after.

    Args:
      path: the lock file.
      resource: the thing that it protects, for messages.
      wait_seconds: how long to wait for another process.
      on_wait: called once, with the reason, if another process holds the lock.

    Raises:
      ResourceHeld: another process still holds the lock after `wait_seconds`.
      MachineError: the file can't be locked.
    """
    start, is_reported = time.monotonic(), False
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_open_lock_file(path))
        while not (is_locked := try_lock(file.fileno())) or not _is_present(file, path):
            if is_locked:  # its last holder has removed it
                stack.close()
                file = stack.enter_context(_open_lock_file(path))
                continue
            file.seek(0)
            held = f"{resource} is held by process {file.read(32).strip() or 'unknown'} ({path})"
            waited = time.monotonic() - start
            if waited > wait_seconds:
                raise ResourceHeld(f"{held}. Wait for that process, or end it, then retry.")
            if not is_reported:
                is_reported = True
                on_wait(f"{held}. Waiting for it.")
            time.sleep(min(_POLL_SECONDS + waited / 10, _MAX_POLL_SECONDS))
        with translate_write_errors(path):
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield


def _is_present(file: IO[str], path: Path) -> bool:
    """Returns whether an open lock file still has its name, and so locks out later openers."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except FileNotFoundError:
        return False


def _open_lock_file(path: Path) -> IO[str]:
    """Opens a lock file. A link is refused, because the pid would be written into its target."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return open(os.open(path, flags, 0o666), "a+")
    except OSError as error:
        raise make_write_error(path, error) from error
