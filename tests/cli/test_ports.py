"""Free ports, and the processes that listen on ports."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from pipeline_ops.cli.local_airflow.ports import find_free_port, find_listener, is_listening


def test_a_free_port_can_be_had():
    with socket.create_server(("127.0.0.1", find_free_port())) as server:
        assert is_listening(server.getsockname()[1])


def test_nobody_listens_on_a_free_port():
    assert not is_listening(find_free_port())


def test_a_listener_on_every_ipv6_address_counts():
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        assert is_listening(server.getsockname()[1])


def test_the_process_that_listens_is_told_from_the_others():
    code = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); "
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        port = int(child.stdout.readline())
        assert find_listener(port, candidates=[os.getpid(), child.pid]) == child.pid
        assert find_listener(port, candidates=[os.getpid()]) is None
    finally:
        child.communicate("")
