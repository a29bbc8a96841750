"""The listening sockets of processes, as `ss` sees them from the network namespace of the tests."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

from pipeline_ops.system.processes import find_descendants

_LOOPBACK = re.compile(r"^(127\.[\d.]+|\[::1\]|\[::ffff:127\.[\d.]+\])(%\w+)?:")


def find_listeners(pids: Iterable[int]) -> set[str]:
    """Local addresses that the given processes listen on: TCP, and UDP that any peer may send
    to."""
    given = set(pids)
    return {address for address, owners in _all_listeners() if given & owners}


def find_listening_processes(setting: str) -> set[int]:
    """The processes that listen anywhere and have `NAME=value` in their environment, which is lost
    where a process gives itself a title."""
    return {
        pid
        for _, owners in _all_listeners()
        for pid in owners
        if setting.encode() in _environment(pid)
    }


def _all_listeners() -> list[tuple[str, set[int]]]:
    lines = subprocess.run(
        ["ss", "-H", "-lntup"], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return [
        (line.split()[4], {int(pid) for pid in re.findall(r"\bpid=(\d+)", line)}) for line in lines
    ]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return []


def filter_non_loopback(addresses: Iterable[str]) -> set[str]:
    return {address for address in addresses if not _LOOPBACK.match(address)}


class ListenerMonitor:
    """Collects the listeners that processes open while the block runs.

    Args:
      pids: Called for each poll. By default all descendants of this process.
      seconds: From one poll to the next.
    """

    def __init__(self, pids: Callable[[], Iterable[int]] = find_descendants, seconds: float = 0.1):
        self._seconds = seconds
        self.seen: set[str] = set()
        self.num_polls = 0
        self._pids, self._ended = pids, threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> ListenerMonitor:
        self._before = find_listeners(self._pids())
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._ended.wait(self._seconds):
            self.seen |= find_listeners(self._pids()) - self._before
            self.num_polls += 1
