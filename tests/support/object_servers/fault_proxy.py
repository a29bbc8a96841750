"""An HTTP proxy before an object store, whose faults a test sets at any moment.

It passes on every header, also Host, so that signatures stay valid. What it does itself: it opens
its own connections to the server, and it gives the errors of `Faults`.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import select
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from .faults import CONDITIONS, Answer, Faults, Judge, Throttle

_BLOCK_BYTES = 256 << 10
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding"})


@dataclass
class Traffic:
    """The requests of one method that came through the proxy, and the bytes of their bodies."""

    requests: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


class FaultProxy:
    """A context manager that runs the proxy in threads of this process.

    Attributes:
      address: `http://127.0.0.1:<port>`; it stays the same while connections are refused.
    """

    def __init__(self, upstream: str, faults: Faults | None = None):
        self.upstream = http.client.urlsplit(upstream).netloc  # type: ignore[attr-defined]
        self._traffic: dict[str, Traffic] = {}
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._server: _Server | None = None
        self._first_faults = faults or Faults()

    def __enter__(self) -> Self:
        # It never listens: the port stays ours while connections are refused.
        self._reserved = _bind(0)
        self._port: int = self._reserved.getsockname()[1]
        self.address = f"http://127.0.0.1:{self._port}"
        self.faults = self._first_faults
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._refuse()
        self._reserved.close()

    @property
    def faults(self) -> Faults:
        return self.judge.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        """Sets what happens to all requests that begin from now on."""
        self.uploads = Throttle(faults.bytes_per_second)
        self.downloads = Throttle(faults.bytes_per_second)
        self.judge = Judge(faults)
        if faults.refused:
            self._refuse()
        else:
            self._accept()

    @contextlib.contextmanager
    def failing(self, **faults: Any) -> Iterator[None]:
        """Sets faults for a `with` block. Other ones than these do not happen meanwhile."""
        before, self.faults = self.faults, Faults(**faults)
        try:
            yield
        finally:
            self.faults = before

    @property
    def traffic(self) -> dict[str, Traffic]:
        """The traffic since the start, or since `reset_traffic`, by method."""
        with self._lock:
            return {method: Traffic(**asdict(found)) for method, found in self._traffic.items()}

    @property
    def num_requests(self) -> int:
        return sum(found.requests for found in self.traffic.values())

    def reset_traffic(self) -> None:
        with self._lock:
            self._traffic.clear()

    def count(self, method: str, requests: int = 0, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            found = self._traffic.setdefault(method, Traffic())
            found.requests += requests
            found.bytes_sent += sent
            found.bytes_received += received

    def track(self, connection: socket.socket, is_open: bool) -> None:
        with self._lock:
            (self._open.add if is_open else self._open.discard)(connection)

    def _accept(self) -> None:
        if self._server is None:
            self._server = _Server(self, _bind(self._port))
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def _refuse(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        with self._lock:
            open_connections = list(self._open)
        for connection in open_connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _bind(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    found.bind(("127.0.0.1", port))
    return found


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, proxy: FaultProxy, listening: socket.socket):
        super().__init__(("127.0.0.1", 0), _Connection, bind_and_activate=False)
        self.socket.close()
        self.socket, self.proxy = listening, proxy
        self.server_activate()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: a client may go at any moment, and the server behind as well."""


class _Connection(http.server.BaseHTTPRequestHandler):
    """One connection of a client, with one to the server behind."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._proxy = self.server.proxy
        self._upstream = http.client.HTTPConnection(self._proxy.upstream, timeout=120)
        self._proxy.track(self.connection, True)

    def finish(self) -> None:
        self._proxy.track(self.connection, False)
        self._upstream.close()
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _handle(self) -> None:
        judge = self._proxy.judge
        if judge.faults.refused:  # accepted just before
            self.close_connection = True
            return
        if not judge.concerns(self.command, self.path):
            judge = Judge(Faults())
        self._proxy.count(self.command, requests=1)
        time.sleep(judge.faults.latency_seconds)
        verdict = judge.decide(self.command, self.path)
        response = None
        if verdict.is_forwarded:
            response = self._forward(judge.faults.ignore_conditions)
        else:
            for _ in self._read_body():
                pass
        if verdict.is_dropped or verdict.answer:
            if response:
                response.read()
            if verdict.is_dropped:
                self.close_connection = True
            else:
                self._give(verdict.answer)
        else:
            self._pass_on(response)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = do_OPTIONS = _handle

    def _read_body(self) -> Iterator[bytes]:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while num_bytes := int(self.rfile.readline().split(b";")[0], 16):
                yield self._received(self.rfile.read(num_bytes))
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            block = self.rfile.read1(min(left, _BLOCK_BYTES))  # type: ignore[attr-defined]
            if not block:
                raise ConnectionError("the client has gone")
            left -= len(block)
            yield self._received(block)

    def _received(self, block: bytes) -> bytes:
        self._proxy.uploads.wait(len(block))
        self._proxy.count(self.command, sent=len(block))
        return block

    def _forward(self, ignore_conditions: bool) -> http.client.HTTPResponse:
        upstream = self._upstream
        if upstream.sock and select.select([upstream.sock], [], [], 0)[0]:
            upstream.close()  # the server has ended it while it was idle
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        is_chunked = False
        for name, value in self.headers.items():
            is_chunked |= name.lower() == "transfer-encoding"
            if not (ignore_conditions and name.lower() in CONDITIONS):
                upstream.putheader(name, value)
        upstream.endheaders()
        for block in self._read_body():
            upstream.send(b"%x\r\n%b\r\n" % (len(block), block) if is_chunked else block)
        if is_chunked:
            upstream.send(b"0\r\n\r\n")
        return upstream.getresponse()

    def _pass_on(self, response: http.client.HTTPResponse) -> None:
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        has_body = self.command != "HEAD" and response.status not in (204, 304)
        is_chunked = has_body and response.length is None
        if is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while has_body and (block := response.read1(_BLOCK_BYTES)):
            self._proxy.downloads.wait(len(block))
            self._proxy.count(self.command, received=len(block))
            self.wfile.write(b"%x\r\n%b\r\n" % (len(block), block) if is_chunked else block)
        if is_chunked:
            self.wfile.write(b"0\r\n\r\n")
        response.read()

    def _give(self, answer: Answer) -> None:
        is_azure = "x-ms-version" in self.headers
        code = answer.azure_code if is_azure else answer.code
        body = (
            f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code>'
            f"<Message>{answer.message}</Message></Error>"
        ).encode()
        self.send_response_only(answer.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        if is_azure:
            self.send_header("x-ms-error-code", code)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
