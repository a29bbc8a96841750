"""The usage lock of the embedded Airflow.

Every command that uses it holds a shared lock on one file. The kernel releases the lock of a
command that was killed, so a dead user never counts. A process that gets the file exclusively knows
that there is no user left. That process is the supervisor, which keeps the lock from then on. A new
command waits until everything has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from pipeline_ops.errors import MachineError

_POLL_SECONDS = 0.05


def hold(file: Path, patience_seconds: float) -> int:
    """Becomes a user. Returns the descriptor for `let_go`.

    Raises:
      MachineError: a supervisor was still ending when the time was up.
    """
    descriptor, deadline = open_holders(file), time.monotonic() + patience_seconds
    while not _lock(descriptor, fcntl.LOCK_SH):
        if time.monotonic() > deadline:
            raise MachineError(
                f"an embedded Airflow has been ending for {patience_seconds:.0f} s "
                f"({file.parent}); look for its processes, and retry"
            )
        time.sleep(_POLL_SECONDS)
    return descriptor


def let_go(descriptor: int) -> bool:
    """Stops being a user. Returns whether it was certainly the last one."""
    was_last = is_unused(descriptor)
    os.close(descriptor)
    return was_last


def open_holders(file: Path) -> int:
    """Opens the lock file for `is_unused`."""
    return os.open(file, os.O_RDWR | os.O_CREAT, 0o600)


def is_unused(descriptor: int) -> bool:
    """Returns whether only the caller holds the file.

    Then the caller has the file exclusively until it closes it.
    """
    return _lock(descriptor, fcntl.LOCK_EX)


def _lock(descriptor: int, kind: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return True
    return False
