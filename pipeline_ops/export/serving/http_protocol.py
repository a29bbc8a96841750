"""HTTP/1.1 on a connection, strict enough for a server behind a proxy.

This is uvicorn's protocol with limits. A request with an ambiguous end is refused, and its
connection is closed. Otherwise the bytes that one program takes for a body could be another request
for the next program. Connections that send or read too slowly are closed, and the number of open
connections is limited.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from pipeline_ops.export.serving.http_limits import Limits

_CONTENT_LENGTH = re.compile(rb"^content-length[ \t]*:(.*)$", re.IGNORECASE | re.MULTILINE)


class StrictConnection(h11.Connection):
    """Refuses requests that h11 accepts: an unexpected body, or a length that is given twice."""

    def __init__(self, max_head_bytes: int):
        super().__init__(h11.SERVER, max_head_bytes)
        self.rejection: h11.RemoteProtocolError | None = None
        self._max_head_bytes = max_head_bytes

    def next_event(self) -> Any:
        """Returns the next event.

        Raises:
          RemoteProtocolError: the request is refused. The error is kept as `rejection`.
        """
        received = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                _check_head(
                    event,
                    received.replace(b"\r\n", b"\n").partition(b"\n\n")[0],
                    self._max_head_bytes,
                )
        except h11.RemoteProtocolError as error:
            self.rejection = error
            raise
        return event


def _check_head(request: h11.Request, head: bytes, max_bytes: int) -> None:
    headers = dict(request.headers)
    is_chunked, lengths = b"transfer-encoding" in headers, _CONTENT_LENGTH.findall(head)
    if len(head) > max_bytes:
        raise h11.RemoteProtocolError(f"the head may have {max_bytes} bytes", error_status_hint=431)
    if len(lengths) > 1 or any(b"," in length for length in lengths):
        raise h11.RemoteProtocolError("Content-Length is given more than once")
    if is_chunked and lengths:
        raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding are given")
    if is_chunked and request.http_version < b"1.1":
        raise h11.RemoteProtocolError("HTTP/1.0 has no Transfer-Encoding")
    if request.method != b"POST" and (is_chunked or int(headers.get(b"content-length", 0))):
        raise h11.RemoteProtocolError(f"{request.method.decode()} must not have a body")


class StrictProtocol(H11Protocol):
    """A connection with limits. `options` are uvicorn's."""

    def __init__(self, limits: Limits, **options: Any):
        super().__init__(**options)
        self.conn: StrictConnection = StrictConnection(limits.head_bytes)
        self._limits = limits
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(  # type: ignore[override]  # a stream has a Transport
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        milliseconds = int(1000 * self._limits.send_timeout_seconds)
        accepted = transport.get_extra_info("socket")
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
            # Without this, a body waits 40 ms for the ACK of its head.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.connections) > self._limits.max_connections:
            self._reject(
                HTTPStatus.SERVICE_UNAVAILABLE, "there are too many connections. Try again later."
            )
        else:
            self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._head_timer is None and self.conn.their_state is h11.IDLE:
            self._start_head_timer()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_head_timer()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio expects a bool
        """Finishes the answer to a client that closes its sending side.

        Then the connection is closed.
        """
        is_answering = self.cycle is not None and not (
            self.cycle.more_body or self.cycle.response_complete
        )
        if is_answering:
            self.cycle.keep_alive = False
        return is_answering

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answers a request that h11 refuses.

        uvicorn calls this method, with the same `msg` for all such requests.
        """
        if rejection := self.conn.rejection:
            self._reject(HTTPStatus(rejection.error_status_hint), str(rejection))

    def _start_head_timer(self) -> None:
        seconds = self._limits.head_seconds
        reason = f"the head of a request must come within {seconds:g} seconds"
        self._head_timer = self.loop.call_later(
            seconds, self._reject, HTTPStatus.REQUEST_TIMEOUT, reason
        )

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _reject(self, status: HTTPStatus, reason: str) -> None:
        """Sends the reason, unless an answer is under way, and closes the connection."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            content = json.dumps({"error": reason}).encode()
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + content)
        self.transport.close()
