"""Ports on the loopback address: find a free one, and identify the process that listens on it.

A port that was free a moment ago may belong to another process now. The starter of a server
therefore calls `find_listener` before it sends anything to that port, and treats any process but
its own as an error.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable

import psutil

_CONNECT_SECONDS = 1.0


def find_free_port() -> int:
    """Returns a port of 127.0.0.1 on which no process listens at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def is_listening(port: int) -> bool:
    """Returns whether any process accepts connections to this port of 127.0.0.1."""
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), _CONNECT_SECONDS).close()
        return True
    return False


def find_listener(port: int, candidates: Iterable[int]) -> int | None:
    """Returns the candidate process that listens on the port; None if there is none."""
    for pid in candidates:
        with contextlib.suppress(psutil.Error):
            for connection in psutil.Process(pid).net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return pid
    return None
