"""Who uses the embedded Airflow. Every command that does holds a shared lock on one file.

The kernel takes the lock away from a command that was killed, so nobody can forget to say good-bye. Whoever gets the file
for himself knows that there is no user left: the supervisor, which keeps it from then on, so that a command that comes
meanwhile waits until everything has ended.
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
    """Becomes a user; returns what `let_go` wants back.

    Raises:
      MachineError: a supervisor was still ending when the patience was.
    """
    descriptor, deadline = open_holders(file), time.monotonic() + patience_seconds
    while not _lock(descriptor, fcntl.LOCK_SH):
        if time.monotonic() > deadline:
            raise MachineError(f"an embedded Airflow has been ending for {patience_seconds:.0f} s ({file.parent}); look for its processes, and retry")
        time.sleep(_POLL_SECONDS)
    return descriptor


def let_go(descriptor: int) -> bool:
    """Is no user any more. Returns whether it was the last one for sure."""
    was_last = is_unused(descriptor)
    os.close(descriptor)
    return was_last


def open_holders(file: Path) -> int:
    """For `is_unused`."""
    return os.open(file, os.O_RDWR | os.O_CREAT, 0o600)


def is_unused(descriptor: int) -> bool:
    """Whether nobody but the caller holds the file; then the caller has it for himself until he closes it."""
    return _lock(descriptor, fcntl.LOCK_EX)


def _lock(descriptor: int, kind: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return True
    return False
