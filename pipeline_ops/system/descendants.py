"""Finds and ends every process below this one.

A process can't escape from one that adopts orphans (`prctl.adopt_orphans`): not by a new session,
not by a double fork, not by the death of the parents in between.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

import psutil

_POLL_SECONDS = 0.05


def find_descendants(root: int | None = None) -> list[int]:
    """The living processes below `root` (default: this process), without zombies."""
    return [process.pid for process in _find_descendants(root)]


def _find_descendants(root: int | None = None) -> list[psutil.Process]:
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(root).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    found.append(process)
    return found


def end_descendants(
    grace_seconds: float, is_awaited: Callable[[int], bool] = lambda pid: True
) -> None:
    """Ends all descendants: SIGTERM, then SIGKILL after the grace time, until none is left.

    Args:
      grace_seconds: the maximum time between the two signals.
      is_awaited: returns whether a process is worth waiting for. The grace time ends early when
        no such process is left.
    """
    _signal(_find_descendants(), signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while any(map(is_awaited, find_descendants())) and time.monotonic() < deadline:
        reap()
        time.sleep(_POLL_SECONDS)
    # Repeatedly, because a dying process may still fork, and each time twice, because psutil misses
    # the children of a process that ends during the search.
    while left := _find_descendants() or _find_descendants():
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


def _signal(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
