"""The health check of the images, run as Docker runs it."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from containers import ROOT

PROGRAM = ROOT / "docker" / "image" / "health.py"
DEAD_PROXY = "http://127.0.0.1:9"


class _Airflow(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"scheduler": {"status": "healthy"}, "triggerer": {"status": null}}')

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.HTTPServer(("127.0.0.1", 0), _Airflow) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_port
        server.shutdown()


def check(*words: str, **environment: str) -> int:
    command = [sys.executable, str(PROGRAM), *words]
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return subprocess.run(command, env=kept | environment, capture_output=True).returncode


def test_a_proxy_for_the_container_is_not_asked_for_its_own_port(port):
    address = f"{port}/health"
    assert check("http", address, http_proxy=DEAD_PROXY, HTTP_PROXY=DEAD_PROXY) == 0


def test_a_proxy_for_the_container_is_not_asked_for_a_component(port):
    api = f"http://127.0.0.1:{port}"
    assert check("airflow", "scheduler", TRAINYARD_API=api, http_proxy=DEAD_PROXY) == 0
    assert check("airflow", "triggerer", TRAINYARD_API=api) == 1


def test_a_port_without_a_server_is_not_healthy(port):
    assert check("tcp", str(port)) == 0
    assert check("tcp", "9") == 1
    assert check("http", "9/health") == 1
