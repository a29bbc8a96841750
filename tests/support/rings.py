"""Gangs of threads in one process, whose rings are joined as those of real workers."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pipeline_ops.training.collectives.rendezvous import join_ring
from pipeline_ops.training.collectives.ring import Ring

TIMEOUT_SECONDS = 60.0
TOKEN = os.urandom(16)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in held]


def near_addresses(workers: int) -> list[str]:
    """Returns addresses on one host. Nothing listens at the ports."""
    return [f"127.0.0.1:{port}" for port in range(1, workers + 1)]


def far_addresses(workers: int) -> list[str]:
    """Returns addresses that all differ, as of several hosts."""
    return [f"127.0.0.{number}:{port}" for number, port in enumerate(free_ports(workers), 1)]


def together(addresses: list[str], work: Callable[[int, Ring], Any]) -> list[Any]:
    """Calls `work` for each worker with its ring. Returns the results."""

    def life(worker: int) -> Any:
        ring = join_ring(worker, addresses, TOKEN, TIMEOUT_SECONDS, TIMEOUT_SECONDS)
        try:
            return work(worker, ring)
        finally:
            ring.close()

    with ThreadPoolExecutor(len(addresses)) as pool:
        return list(pool.map(life, range(len(addresses))))
