"""The HTTP server of `trainyard serve`.

It is Starlette on uvicorn, for smoke tests and demos. It answers image files in TensorFlow
Serving's REST form, and follows an alias without a restart. It does not replace TensorFlow Serving:
it has one signature, no batching of requests, no gRPC, no TLS and no login. Slow clients have
limits of time and memory, but can still take all connections. For this reason, it listens on this
machine alone, except with another `--host`.

GET  /                           a page for predictions of a picture
GET  /health                     200 when a model is loaded, 503 before
POST /v1/models/NAME:predict     rows of image files
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Collection
from http import HTTPStatus
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from pipeline_ops.registry.registry import Registry
from pipeline_ops.served.http.model_reloader import LoadedModel, ModelReloader, predict
from pipeline_ops.served.http.rest import BadRequest
from pipeline_ops.served.requests import ServerStatistics

MAX_BODY_BYTES = 64 << 20
_MAX_BYTES_OF_BODIES = 4 * MAX_BODY_BYTES
_MAX_CONNECTIONS = 64
_BACKLOG = 128
_IDLE_SECONDS, _BODY_SECONDS, _STOP_SECONDS = 15, 30.0, 10
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self' 'unsafe-inline'; "
    "script-src 'self'; img-src blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
}
_HERE = Path(__file__).parent
_STATIC = {
    "/": ("text/html", [_HERE / "page.html"]),
    "/page.js": ("text/javascript", [_HERE / "page.js"]),
    "/page.css": ("text/css", [_HERE.parents[1] / "pages" / "page.css", _HERE / "page.css"]),
}


class Service:
    """Answers requests for one model. Several threads may call its methods at once.

    They raise BadRequest for a request that the client must change, or before a model is loaded.
    `statistics` counts the requests.
    """

    def __init__(
        self,
        name: str,
        alias: str,
        reloader: ModelReloader,
        statistics: ServerStatistics | None = None,
    ):
        self.name, self.alias, self.reloader = name, alias, reloader
        self.statistics = statistics

    def get(self, path: str) -> Response:
        if path in _STATIC:
            kind, files = _STATIC[path]
            content = b"".join(file.read_bytes() for file in files)
            return Response(content, headers=_HEADERS, media_type=kind)
        if path == "/health":
            return self._report_health()
        if path == "/page.json":
            model = self._find_model()
            about = {"name": self.name, "alias": self.alias}
            return _to_json_response(
                about | {"version": model.number, "class_names": model.class_names}
            )
        self._check_path(path)
        raise BadRequest(f"{path} needs a POST request", HTTPStatus.METHOD_NOT_ALLOWED)

    def post(self, path: str, body: bytes | bytearray) -> Response:
        self._check_path(path)
        return _to_json_response(predict(self._find_model(), body, self.statistics))

    def _check_path(self, path: str) -> None:
        only = f"/v1/models/{self.name}:predict"
        if path != only:
            raise BadRequest(f"there is no {path}, only {only}", HTTPStatus.NOT_FOUND)

    def _report_health(self) -> Response:
        model = self.reloader.model
        value = {
            "status": "ok" if model else "loading",
            "version": model.number if model else None,
            "problem": self.reloader.problem,
        }
        return _to_json_response(value, HTTPStatus.OK if model else HTTPStatus.SERVICE_UNAVAILABLE)

    def _find_model(self) -> LoadedModel:
        if (model := self.reloader.model) is None:
            problem = self.reloader.problem
            reason = f"no model is loaded yet{f': {problem}' if problem else ''}"
            raise BadRequest(reason, HTTPStatus.SERVICE_UNAVAILABLE)
        return model


def _to_json_response(value: Any, status: int = HTTPStatus.OK) -> Response:
    return Response(json.dumps(value), status, _HEADERS, "application/json")


class _Bodies:
    """Reads the bodies of requests. All that are in memory share one budget of bytes."""

    def __init__(self, seconds: float):
        self._seconds, self._num_bytes = seconds, 0

    @contextlib.asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytearray]:
        """Yields a body, which takes its part of the budget until the block ends.

        Raises BadRequest if it is too large or comes too slowly, or if there is no room for it.
        """
        body = bytearray()
        try:
            try:
                async with asyncio.timeout(self._seconds):
                    await self._fill(body, request)
            except TimeoutError:
                raise BadRequest(
                    f"the body must arrive within {self._seconds:g} s", HTTPStatus.REQUEST_TIMEOUT
                ) from None
            yield body
        finally:
            self._num_bytes -= len(body)

    async def _fill(self, body: bytearray, request: Request) -> None:
        too_large = BadRequest(
            f"the body may have {MAX_BODY_BYTES} bytes at most", HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        )
        # h11 has checked the digits.
        if int(request.headers.get("content-length", 0)) > MAX_BODY_BYTES:
            raise too_large
        async for part in request.stream():
            body += part
            self._num_bytes += len(part)
            if len(body) > MAX_BODY_BYTES:
                raise too_large
            if self._num_bytes > _MAX_BYTES_OF_BODIES:
                raise BadRequest(
                    f"the bodies of all requests may have {_MAX_BYTES_OF_BODIES} bytes together. "
                    "Send the request again later",
                    HTTPStatus.SERVICE_UNAVAILABLE,
                )


class _Connection(H11Protocol):
    """A connection that is closed if no whole header arrives in time after the last answer.

    uvicorn itself waits for ever once a byte of a request has come. At the limit of connections,
    a new one takes the place of the one that has been idle for the longest time.
    """

    _timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) >= _MAX_CONNECTIONS:
            others = [each for each in self.connections if isinstance(each, _Connection)]
            idle = [each for each in others if each is not self and each._can_be_replaced()]
            if idle:
                min(idle, key=lambda each: each._idle_since).transport.abort()
        self._begin_idle()

    def on_response_complete(self) -> None:
        self._begin_idle()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _begin_idle(self) -> None:
        self._stop_timer()
        self._idle_since = self.loop.time()
        self._timer = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _can_be_replaced(self) -> bool:
        is_sent = self.transport.get_write_buffer_size() == 0
        return self._is_idle() and is_sent and not self.transport.is_closing()

    def _close_if_idle(self) -> None:
        if self._is_idle():
            self.transport.close()  # after what is left of an answer


def _make_app(service: Service, allowed_hosts: Collection[str], body_seconds: float) -> Starlette:
    """The application that answers with the responses of a service.

    Clients must address it by one of `allowed_hosts`; "*" is any. A browser can be made to resolve
    the name of another site to this machine (DNS rebinding). Then pages of that site could read
    answers.
    """
    bodies = _Bodies(body_seconds)
    threads = anyio.CapacityLimiter(max(2, min(8, os.cpu_count() or 1)))

    async def answer(request: Request) -> Response:
        path = request.scope["path"]
        try:
            if request.method != "POST":
                return service.get(path)
            async with bodies.read(request) as body:
                return await anyio.to_thread.run_sync(service.post, path, body, limiter=threads)
        except BadRequest as error:
            return _to_json_response({"error": str(error)}, error.status)
        except ClientDisconnect:
            return Response()

    return Starlette(
        routes=[Route("/{path:path}", answer, methods=["GET", "POST"])],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(allowed_hosts))],
    )


def make_server(
    service: Service,
    allowed_hosts: Collection[str] = ("*",),
    idle_seconds: int = _IDLE_SECONDS,
    body_seconds: float = _BODY_SECONDS,
) -> uvicorn.Server:
    """Returns a server. `run(sockets=[listener])` serves until `should_exit` is set.

    In the main thread, SIGTERM and Ctrl-C have the same effect as without a server.
    """
    return uvicorn.Server(
        uvicorn.Config(
            _make_app(service, allowed_hosts, body_seconds),
            http=_Connection,
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_keep_alive=idle_seconds,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
    )


def listen(host: str, port: int) -> socket.socket:
    """Opens a listening TCP socket. Port 0 takes a free one."""
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return socket.create_server(address[:2], family=family, backlog=_BACKLOG)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="location of the model in a registry")
    parser.add_argument("--name", required=True, help="name of the model in requests")
    parser.add_argument("--alias", default="champion", help="alias or number of the version")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8501)
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME")
    parser.add_argument("--no-statistics", action="store_true")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    # Like Ctrl-C, so that the process ends in the same way.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    reloader = ModelReloader(Registry(arguments.model), arguments.alias)
    statistics = None if arguments.no_statistics else ServerStatistics(arguments.model)
    host = arguments.host
    service = Service(arguments.name, arguments.alias, reloader, statistics)
    try:
        listener = listen(host, arguments.port)
    except OSError as error:
        print(
            f"cannot listen on {host}:{arguments.port}: {error.strerror}. "
            "Choose another port with --port.",
            file=sys.stderr,
        )
        return 1
    server = make_server(service, _choose_allowed_hosts(host, arguments.allow_host))
    port = listener.getsockname()[1]
    if not _is_loopback(host):
        print(
            f"warning: any client that reaches {host}:{port} can request predictions, because "
            "the server has no login and no TLS. "
            "Put a proxy in front that has both, or listen on 127.0.0.1.",
            file=sys.stderr,
        )
    print(f"http://{f'[{host}]' if ':' in host else host}:{port}/", flush=True)
    if statistics:
        print(
            f"statistics of requests, without images, go to {statistics.folder}. "
            "--no-statistics turns them off.",
            file=sys.stderr,
        )
    reloader.start()
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    if statistics:
        statistics.close()
    return 0


def _choose_allowed_hosts(host: str, names: Collection[str]) -> list[str]:
    """The names by which clients may address the server: any if it is open to other machines."""
    if not names and not _is_loopback(host):
        return ["*"]
    address = f"[{host}]" if ":" in host else host
    return ["localhost", "127.0.0.1", "[::1]", socket.gethostname(), address, *names]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


if __name__ == "__main__":
    sys.exit(main())
