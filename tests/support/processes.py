"""What tests ask of processes that may end at any moment: a question to one that has gone has an
answer, too. And how long they took to end."""

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
"""On a machine that has other things to do, whatever is promised takes so many times as long at
most."""


class Stopwatch:
    """How long something takes, so that a promise of seconds can be held to on a busy machine, too.

    What processes of this machine have waited for a core meanwhile doesn't count, where Linux tells
    that; but however busy the machine is, a sixth of the time does: 5 s are over after 30 s in any
    case.
    """

    def __init__(self):
        self._began, self._waited = time.monotonic(), _waited_for_a_core()

    @property
    def seconds(self) -> float:
        elapsed = time.monotonic() - self._began
        return max(elapsed - (_waited_for_a_core() - self._waited), elapsed / _BUSY)


def _waited_for_a_core() -> float:
    """For how many seconds, since the machine was started, some process was ready to run and could
    not."""
    try:
        return int(re.search(r"some .*total=(\d+)", _PRESSURE.read_text()).group(1)) / 1e6
    except OSError:
        return 0.0


def ask(question: Callable[[], T], gone: T) -> T:
    """The answer of a process, or `gone` if it has ended meanwhile."""
    try:
        return question()
    except psutil.Error:
        return gone


def lives(process: psutil.Process) -> bool:
    """A process that has ended and waits for its parent to notice doesn't live."""
    return ask(
        lambda: process.is_running() and process.status() != psutil.STATUS_ZOMBIE, gone=False
    )


def command_line(process: psutil.Process) -> list[str]:
    return ask(process.cmdline, gone=[])


def below(process: psutil.Process) -> list[psutil.Process]:
    return ask(lambda: process.children(recursive=True), gone=[])


def at_work_on(folder: Path) -> list[psutil.Process]:
    """All that live now and name something in a folder, or work there, or are below a process that
    does: a job names its request."""
    found, place = [], str(folder)
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if any(
            place in word for word in (*(process.info["cmdline"] or ()), process.info["cwd"] or "")
        ):
            found += [process, *below(process)]
    return [
        process for process in dict.fromkeys(found) if lives(process) and process.pid != os.getpid()
    ]


def left_below(folder: Path, seconds: float = 30.0) -> list[psutil.Process]:
    """Those of them that are still there after that long; one that ends takes a moment to do so."""
    deadline = time.monotonic() + seconds
    while (left := at_work_on(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def let_other_users_pass(folder: Path) -> None:
    """To what lies in a folder, for a server that runs as a user of its own: pytest's folders are
    for their owner alone."""
    for part in (folder, *folder.parents):
        if part.stat().st_uid == os.geteuid():
            part.chmod(part.stat().st_mode | 0o011)
