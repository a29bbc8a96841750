"""Free ports."""

from __future__ import annotations

import socket

from pipeline_ops.cli.embedded_airflow import find_free_port


def test_a_free_port_can_be_had():
    with socket.create_server(("127.0.0.1", find_free_port())) as server:
        socket.create_connection(server.getsockname()).close()
