"""Questions to processes that may end at any moment, and the time that they take to end."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")
_PRESSURE = Path("/proc/pressure/cpu")
_BUSY = 6
"""On a machine that has other things to do, a promised time may be exceeded by this factor."""


class Stopwatch:
    """Measures a duration, so that a promise in seconds can be tested on a busy machine.

    The time in which processes waited for a core is not counted, if Linux reports it.
    At least a sixth of the time is counted: 5 s are over after 30 s in any case.
    """

    def __init__(self):
        self._began, self._waited = time.monotonic(), _read_cpu_wait_seconds()

    @property
    def seconds(self) -> float:
        elapsed = time.monotonic() - self._began
        return max(elapsed - (_read_cpu_wait_seconds() - self._waited), elapsed / _BUSY)


def _read_cpu_wait_seconds() -> float:
    """The seconds since the start of the machine in which a process waited for a core."""
    try:
        return int(re.search(r"some .*total=(\d+)", _PRESSURE.read_text()).group(1)) / 1e6
    except OSError:
        return 0.0


def query_process(query: Callable[[], T], gone: T) -> T:
    """The answer of a process, or `gone` if it has ended in the meantime."""
    try:
        return query()
    except psutil.Error:
        return gone


def is_running(process: psutil.Process) -> bool:
    """Returns whether a process lives. A zombie does not."""
    return query_process(
        lambda: process.is_running() and process.status() != psutil.STATUS_ZOMBIE, gone=False
    )


def read_command_line(process: psutil.Process) -> list[str]:
    return query_process(process.cmdline, gone=[])


def find_child_processes(process: psutil.Process) -> list[psutil.Process]:
    return query_process(lambda: process.children(recursive=True), gone=[])


def find_processes_using(folder: Path) -> list[psutil.Process]:
    """All that live now and name something in a folder, or work there, or are below a process that
    does: a job names its request."""
    found, path = [], str(folder)
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if any(
            path in word for word in (*(process.info["cmdline"] or ()), process.info["cwd"] or "")
        ):
            found += [process, *find_child_processes(process)]
    return [
        process
        for process in dict.fromkeys(found)
        if is_running(process) and process.pid != os.getpid()
    ]


def find_remaining_processes(folder: Path, seconds: float = 30.0) -> list[psutil.Process]:
    """The processes that remain after some seconds. A process takes a moment to end."""
    deadline = time.monotonic() + seconds
    while (left := find_processes_using(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def wait_until(condition: Callable[[], T], seconds: float = 60.0) -> T:
    """Waits until a condition holds, and returns its value. Fails after the time."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"the condition does not hold after {seconds} s"
        time.sleep(0.1)
    return found


def kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def allow_other_users(folder: Path) -> None:
    """To what lies in a folder, for a server that runs as a user of its own: pytest's folders are
    for their owner alone."""
    for part in (folder, *folder.parents):
        if part.stat().st_uid == os.geteuid():
            part.chmod(part.stat().st_mode | 0o011)
