"""What tests ask of processes that may end at any moment: a question to one that has gone has an answer, too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")


def ask(question: Callable[[], T], gone: T) -> T:
    """The answer of a process, or `gone` if it has ended meanwhile."""
    try:
        return question()
    except psutil.Error:
        return gone


def lives(process: psutil.Process) -> bool:
    """A process that has ended and waits for its parent to notice doesn't live."""
    return ask(lambda: process.is_running() and process.status() != psutil.STATUS_ZOMBIE, gone=False)


def command_line(process: psutil.Process) -> list[str]:
    return ask(process.cmdline, gone=[])


def below(process: psutil.Process) -> list[psutil.Process]:
    return ask(lambda: process.children(recursive=True), gone=[])


def working_below(folder: Path) -> list[psutil.Process]:
    """All that live now and work there, whatever they call themselves, and whoever started them."""
    return [process for process in psutil.process_iter(["cwd"]) if (process.info["cwd"] or "").startswith(str(folder)) and lives(process)]


def kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
