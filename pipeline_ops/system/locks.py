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
from pipeline_ops.storage.local_files import (
    describe_os_error,
    get_descriptor_path,
    make_write_error,
    translate_write_errors,
)


class ResourceHeld(MachineError):
    """Another process works on the same thing."""


class HolderWait:
    """Waits for the holder of a resource, and asks less often as time passes.

    `on_wait` is called once, with the reason. `poll_seconds` are the first and the longest time
    between two looks.
    """

    def __init__(
        self,
        limit_seconds: float,
        on_wait: Callable[[str], None],
        poll_seconds: tuple[float, float],
    ):
        self._limit, self._on_wait = limit_seconds, on_wait
        self._first, self._longest = poll_seconds
        self._start, self._is_reported = time.monotonic(), False

    def wait(self, held: str) -> None:
        """Waits until the next look.

        Raises ResourceHeld after the limit. `held` says what, and by whom.
        """
        waited = time.monotonic() - self._start
        if waited > self._limit:
            raise ResourceHeld(f"{held}. Wait for that process, or end it, then retry.")
        if not self._is_reported:
            self._is_reported = True
            self._on_wait(f"{held}. Waiting for it.")
        time.sleep(min(self._first + waited / 10, self._longest))


def try_lock(descriptor: int, is_shared: bool = False, alternative: str = "") -> bool:
    """Locks an open file or folder. Returns False if another process holds a conflicting lock.

    `alternative` is what an operator can do instead if the file system has no locks (MachineError).
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

    The owner writes its pid into the file, for messages. It may remove the file, and a waiting
    process then locks the next one. `on_wait` is called once, with the reason, if another process
    holds the lock of the `resource`. Raises ResourceHeld if it still does after `wait_seconds`.
    """
    wait = HolderWait(wait_seconds, on_wait, poll_seconds=(0.05, 2.0))
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_open_lock_file(path))
        while not (is_locked := try_lock(file.fileno())) or not _is_present(file, path):
            if is_locked:  # its last holder has removed it
                stack.close()
                file = stack.enter_context(_open_lock_file(path))
                continue
            file.seek(0)
            pid = file.read(32).strip()  # empty until a new holder has written it
            holder = f"process {pid}" if pid else "another process"
            wait.wait(f"{resource} is held by {holder} ({path})")
        with translate_write_errors(path):
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), str(os.getpid()).encode())  # without a buffer to close
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
