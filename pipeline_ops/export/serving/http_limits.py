"""Limits on the time and memory that clients of the HTTP server may use."""

from __future__ import annotations

import dataclasses
import os


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits. The defaults suit one small machine. A proxy in front can have narrower ones."""

    max_connections: int = 100
    """Open connections. One more gets 503."""
    head_bytes: int = 16 << 10
    """The size of request line and headers. More gets 431."""
    head_seconds: float = 10
    """The time for a head to arrive. A later head gets 408.

    It starts with the connection, or with the first byte of the head after an answer.
    """
    body_bytes: int = 64 << 20
    """The size of one body. More gets 413."""
    body_seconds: float = 60
    """The time for a body to arrive. A later body gets 408."""
    inflight_bytes: int = 256 << 20
    """The size of the bodies of all requests that are being read or answered. More gets 503."""
    threads: int = max(2, min(8, os.cpu_count() or 1))
    """Predictions at the same time."""
    max_waiting: int = 32
    """Predictions that wait for a thread. One more gets 503."""
    send_timeout_seconds: float = 30
    """The time for a client to take some of its answer. Then the connection is closed."""
    idle_seconds: int = 15
    """The time of a connection without a request. Then it is closed."""
    stop_seconds: int = 10
    """The time for the requests that are under way when the server stops."""
