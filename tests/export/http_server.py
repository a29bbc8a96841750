"""A server in a thread of the test, with a model that needs no TensorFlow."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import uvicorn

from pipeline_ops.served.http.server import Service, listen, make_server
from pipeline_ops.served.requests import ServerStatistics

BODY = b'{"instances": [{"b64": "eA=="}]}'
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Model:
    """Gives every row the same answer, once `may_answer` is set."""

    number, class_names, to_input = 1, ["a", "b"], None

    def __init__(self):
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = threading.Semaphore(0)

    def answer(self, files: Sequence[bytes]) -> dict[str, np.ndarray]:
        self.asked.release()
        self.may_answer.wait(60)
        rows = len(files)
        return {"classes": np.zeros(rows, int), "probabilities": np.ones((rows, 2), np.float32)}


class Loaded:
    """A ModelReloader that has loaded the model."""

    problem = ""

    def __init__(self):
        self.model = Model()


class Running:
    """A server that runs, and connections to it."""

    def __init__(self, server: uvicorn.Server, model: Model, port: int):
        self.server, self.model, self.port = server, model, port

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 30)

    def send(self, request: bytes) -> bytes:
        """Everything that comes back until the server closes the connection."""
        with self.connect() as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(request)
            return read_to_end(connection)

    def is_alive(self) -> bool:
        answer = self.send(post(BODY, b"Connection: close\r\n"))
        return answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(
            b'"probabilities": [1.0, 1.0]}]}'
        )


@contextlib.contextmanager
def running(
    *allowed_hosts: str, statistics: ServerStatistics | None = None, **limits: float
) -> Iterator[Running]:
    loaded = Loaded()
    listener = listen("127.0.0.1", 0)
    service = Service("digits", "champion", loaded, statistics)
    server = make_server(service, allowed_hosts or ("*",), **limits)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield Running(server, loaded.model, listener.getsockname()[1])
    finally:
        loaded.model.may_answer.set()
        server.should_exit = True
        thread.join()


def post(body: bytes, headers: bytes = b"") -> bytes:
    return post_as(b"Content-Length: %d\r\n" % len(body) + headers, body)


def post_as(framing: bytes, body: bytes) -> bytes:
    return (
        b"POST /v1/models/digits:predict HTTP/1.1\r\nHost: localhost\r\n" + framing + b"\r\n" + body
    )


def read_to_end(connection: socket.socket) -> bytes:
    received = bytearray()
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            received += part
    return bytes(received)


def statuses(received: bytes) -> list[int]:
    """The statuses of all answers on a connection. JSON has no line breaks, so no content looks
    like a status line."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) [A-Za-z -]+\r\n", received)]
