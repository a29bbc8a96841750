"""Ports on the loopback address: find a free one, and identify the process that listens on it.

A port that was free a moment ago may belong to another process now. The starter of a server
therefore calls `listener` before it connects to that port, and treats any process but its own as an
error.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from pathlib import Path

_LISTENING = "0A"  # state in /proc/net/tcp
_ADDRESS, _STATE, _INODE = 1, 3, 9


def free_port() -> int:
    """A port of 127.0.0.1 on which no process listens at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_listening(port: int) -> bool:
    """Returns whether any process listens on this port, on any IPv4 or IPv6 address."""
    return bool(_inodes(port))


def listener(port: int, among: Iterable[int]) -> int | None:
    """The process that listens on the port, if it is one of the given ones."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    return next((pid for pid in among if sockets & _descriptors(pid)), None)


def _inodes(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            found |= {
                row[_INODE]
                for row in rows
                if row[_STATE] == _LISTENING and int(row[_ADDRESS].rsplit(":", 1)[1], 16) == port
            }
    return found


def _descriptors(pid: int) -> set[str]:
    folder = Path(f"/proc/{pid}/fd")
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):  # closed since the listing
                found.add(os.readlink(folder / name))
    return found
