"""Tries which addresses this host can connect to, all at the same time."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterable

from pipeline_ops.system.readiness import wait_until_ready


def find_unreachable(addresses: Iterable[str], timeout_seconds: float) -> dict[str, str]:
    """The addresses, as `host:port`, that refuse a connection or do not answer, and why.

    It returns after the timeout at the latest, apart from the look-up of names.
    """
    waiting: dict[socket.socket, str] = {}
    problems: dict[str, str] = {}
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            # TensorFlow's servers and our workers listen on IPv4.
            family, kind, _, _, target = socket.getaddrinfo(
                host, port, socket.AF_INET, socket.SOCK_STREAM
            )[0]
        except OSError as error:
            problems[address] = f"its name can't be resolved ({error.strerror})"
            continue
        connection = socket.socket(family, kind)
        connection.setblocking(False)
        if (number := connection.connect_ex(target)) not in (0, errno.EINPROGRESS):
            problems[address] = os.strerror(number)
        waiting[connection] = address
    deadline = time.monotonic() + timeout_seconds
    while pending := [each for each in waiting if each.fileno() >= 0]:
        _, writable = wait_until_ready([], pending, max(0.0, deadline - time.monotonic()))
        for connection in writable:
            if number := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                problems.setdefault(waiting[connection], os.strerror(number))
            connection.close()
        if time.monotonic() > deadline:
            break
    for connection in waiting:
        if connection.fileno() >= 0:
            problems.setdefault(waiting[connection], "no answer")
            connection.close()
    return problems
