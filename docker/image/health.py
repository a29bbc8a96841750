"""The health of a service, as the exit status: `health.py tcp PORT`, `http PORT/PATH`,
`celery` or `airflow COMPONENT`.

It imports neither Airflow nor TensorFlow, so that it can run often. It asks no proxy, although
Docker's client may have put the address of one into the container.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import urllib.request

_SECONDS = 5.0
_BROKER = "/run/secrets/AIRFLOW__CELERY__BROKER_URL"
_API = "http://api-server:8080"
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def is_listening(port: str) -> bool:
    with socket.create_connection(("127.0.0.1", int(port)), _SECONDS):
        return True


def responds(address: str) -> bool:
    url = f"http://127.0.0.1:{address}"
    with _OPENER.open(url, timeout=_SECONDS) as response:
        return bool(response.status == 200)


def has_heartbeat(component: str) -> bool:
    """Asks the API server for a component of Airflow, such as `scheduler`."""
    url = f"{os.environ.get('TRAINYARD_API', _API)}/api/v2/monitor/health"
    with _OPENER.open(url, timeout=_SECONDS) as response:
        return bool(json.load(response)[component]["status"] == "healthy")


def answers_ping() -> bool:
    """Asks the Celery worker of this host over the broker."""
    from celery import Celery

    with open(_BROKER) as file:
        app = Celery(broker=file.read().strip())
    name = f"celery@{socket.gethostname()}"
    return bool(app.control.ping(destination=[name], timeout=_SECONDS))


_CHECKS = {
    "tcp": is_listening,
    "http": responds,
    "airflow": has_heartbeat,
    "celery": answers_ping,
}

if __name__ == "__main__":
    sys.exit(0 if _CHECKS[sys.argv[1]](*sys.argv[2:]) else 1)
