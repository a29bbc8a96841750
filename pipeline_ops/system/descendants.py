"""Finds and ends every process below this one.

A process can't escape from one that adopts orphans (`adopt_orphans`): not by a new session, not by
a double fork, not by the death of the parents in between. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_POLL_SECONDS = 0.05
_STATE, _PARENT = 0, 1  # fields of /proc/<pid>/stat after the command's name
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent dies. Raises OSError."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Makes the kernel kill this process when the thread that started it ends.

    A function for `preexec_fn`. Raises OSError.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def descendants(root: int | None = None) -> list[int]:
    """The living processes below `root` (default: this process), without zombies."""
    children: dict[int, list[int]] = defaultdict(list)
    zombies = set()
    for pid, state, parent in _processes():
        children[parent].append(pid)
        if state in "ZX":
            zombies.add(pid)
    found, waiting = [], [os.getpid() if root is None else root]
    while waiting:
        below = children[waiting.pop()]
        found += below
        waiting += below
    return [pid for pid in found if pid not in zombies]


def end_descendants(grace_seconds: float, spare: Callable[[int], bool] = lambda pid: True) -> None:
    """Ends all descendants: SIGTERM, then SIGKILL after the grace time, until none is left.

    Args:
      grace_seconds: the maximum time between the two signals.
      spare: returns whether a process is worth waiting for. The grace time ends early when no such
        process is left.
    """
    _signal(descendants(), signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while any(spare(pid) for pid in descendants()) and time.monotonic() < deadline:
        reap()
        time.sleep(_POLL_SECONDS)
    while left := descendants():  # repeatedly, because a dying process may still fork
        _signal(left, signal.SIGKILL)
        reap()
        time.sleep(_POLL_SECONDS)
    reap()


def reap() -> dict[int, int]:
    """Collects the children that have ended.

    Returns:
      Exit status by pid. It is negative for a signal.
    """
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (result := os.waitpid(-1, os.WNOHANG))[0]:
            ended[result[0]] = os.waitstatus_to_exitcode(result[1])
    return ended


def _processes():
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
                yield int(entry), fields[_STATE], int(fields[_PARENT])


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
