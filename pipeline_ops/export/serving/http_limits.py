"""What the HTTP server lets its clients take of time and memory."""

from __future__ import annotations

import dataclasses
import os


@dataclasses.dataclass(frozen=True)
class Limits:
    """The defaults are for one small machine. A proxy in front can have narrower ones."""

    connections: int = 100
    """Open at once. One more gets 503."""
    head_bytes: int = 16 << 10
    """Request line and headers. More gets 431."""
    head_seconds: float = 10
    """For a head to arrive, from the start of the connection or from its first byte after an answer. Then 408."""
    body_bytes: int = 64 << 20
    """One body. More gets 413."""
    body_seconds: float = 60
    """For a body to arrive. Then 408."""
    bytes_under_way: int = 256 << 20
    """The bodies of all requests that are read or answered. More gets 503."""
    threads: int = max(2, min(8, os.cpu_count() or 1))
    """Predictions at the same time."""
    waiting: int = 32
    """Predictions that wait for a thread. One more gets 503."""
    unread_seconds: float = 30
    """For a client to take some of its answer. Then the connection is closed."""
    idle_seconds: int = 15
    """For a connection without a request. Then it is closed."""
    stop_seconds: int = 10
    """For the requests that are under way when the server stops."""
