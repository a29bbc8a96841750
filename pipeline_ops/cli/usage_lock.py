"""The usage lock of the embedded Airflow.

Every command that uses it holds a shared lock on one file. The kernel releases the lock of a
command that was killed, so a dead user never counts. A process that gets the file exclusively knows
that there is no user left. That process is the supervisor, which keeps the lock from then on. A new
command waits until everything has ended.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from pipeline_ops.errors import MachineError
from pipeline_ops.system.locks import try_lock

_POLL_SECONDS = 0.05


def acquire_usage_lock(file: Path, timeout_seconds: float) -> int:
    """Takes the shared lock. Returns the descriptor for `release_usage_lock`.

    Raises:
      MachineError: a supervisor was still stopping after the timeout.
    """
    descriptor, deadline = open_lock_file(file), time.monotonic() + timeout_seconds
    while not try_lock(descriptor, is_shared=True):
        if time.monotonic() > deadline:
            raise MachineError(
                f"the embedded Airflow in {file.parent} has not finished stopping after "
                f"{timeout_seconds:.0f} s. End its processes, then retry."
            )
        time.sleep(_POLL_SECONDS)
    return descriptor


def release_usage_lock(descriptor: int) -> bool:
    """Releases the lock. Returns whether the caller was certainly the last user."""
    was_last_user = is_unused(descriptor)
    os.close(descriptor)
    return was_last_user


def open_lock_file(file: Path) -> int:
    """Opens the lock file for `is_unused`."""
    return os.open(file, os.O_RDWR | os.O_CREAT, 0o600)


def is_unused(descriptor: int) -> bool:
    """Returns whether only the caller holds the file.

    Then the caller has the file exclusively until it closes it.
    """
    return try_lock(descriptor)
