"""The HTTP server of `trainyard serve` and of the export job's last check.

It is Starlette on uvicorn, for smoke tests and demos. It speaks TensorFlow Serving's REST form and
follows an alias without a restart. It does not replace TensorFlow Serving: it has no batching of
requests, no gRPC, no TLS and no login, and its only defence against slow clients is a limit on
connections. For this reason, it listens on this machine alone, except with another `--host`.
`service.py` has the paths.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Collection
from http import HTTPStatus

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from pipeline_ops.export.serving.model_reloader import ModelReloader
from pipeline_ops.export.serving.rest import BadRequest
from pipeline_ops.export.serving.service import Service, to_json_response
from pipeline_ops.registry.registry import Registry

MAX_BODY_BYTES = 64 << 20
_MAX_CONNECTIONS = 64
_BACKLOG = 128
_IDLE_SECONDS, _STOP_SECONDS = 15, 10
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self' 'unsafe-inline'; "
    "script-src 'self'; img-src blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
}


def make_app(service: Service, allowed_hosts: Collection[str]) -> Starlette:
    """The application that answers with the responses of a service.

    Clients must address it by one of `allowed_hosts`; "*" is any. A browser can be made to resolve
    the name of another site to this machine (DNS rebinding). Then pages of that site could read
    answers.
    """
    threads = anyio.CapacityLimiter(max(2, min(8, os.cpu_count() or 1)))

    async def answer(request: Request) -> Response:
        path = request.scope["path"]
        try:
            if request.method == "POST":
                body = await _read_body(request)
                found = await anyio.to_thread.run_sync(service.post, path, body, limiter=threads)
            else:
                found = service.get(path)
        except BadRequest as error:
            found = to_json_response({"error": str(error)}, error.status)
        except ClientDisconnect:
            return Response()
        return Response(found.content, found.status, _HEADERS | {"Content-Type": found.type})

    return Starlette(
        routes=[Route("/{path:path}", answer, methods=["GET", "POST"])],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(allowed_hosts))],
    )


async def _read_body(request: Request) -> bytes:
    """Reads the body. Raises BadRequest if it is too large."""
    body, too_large = bytearray(), HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    error = BadRequest(f"the body may have {MAX_BODY_BYTES} bytes at most", too_large)
    if int(request.headers.get("content-length", 0)) > MAX_BODY_BYTES:  # h11 has checked the digits
        raise error
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise error
    return bytes(body)


def listen(host: str, port: int) -> socket.socket:
    """Opens a listening TCP socket. Port 0 takes a free one.

    Raises:
      OSError: the address is not available.
    """
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return socket.create_server(address[:2], family=family, backlog=_BACKLOG)


class Server:
    """Answers on a listening socket, of TCP or of the Unix domain, while `run` runs."""

    def __init__(
        self, listener: socket.socket, service: Service, allowed_hosts: Collection[str] = ("*",)
    ):
        self._socket = listener
        self._server = uvicorn.Server(
            uvicorn.Config(
                make_app(service, allowed_hosts),
                http="h11",
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
                timeout_keep_alive=_IDLE_SECONDS,
                timeout_graceful_shutdown=_STOP_SECONDS,
            )
        )

    def run(self) -> None:
        """Serves until `stop` is called.

        In the main thread, SIGTERM and Ctrl-C have the same effect as without a server.
        """
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        self._server.should_exit = True


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="location of the model in a registry")
    parser.add_argument("--name", required=True, help="name of the model in requests")
    parser.add_argument("--alias", default="champion", help="alias or number of the version")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8501)
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    # Like Ctrl-C, so that the process ends in the same way.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    reloader = ModelReloader(Registry(arguments.model), arguments.alias)
    host, service = arguments.host, Service(arguments.name, arguments.alias, reloader)
    try:
        listener = listen(host, arguments.port)
    except OSError as error:
        print(
            f"cannot listen on {host}:{arguments.port}: {error.strerror}. "
            "Choose another port with --port.",
            file=sys.stderr,
        )
        return 1
    server = Server(listener, service, _choose_allowed_hosts(host, arguments.allow_host))
    port = listener.getsockname()[1]
    if not _is_loopback(host):
        print(
            f"warning: any client that reaches {host}:{port} can request predictions, because "
            "the server has no login and no TLS. "
            "Put a proxy in front that has both, or listen on 127.0.0.1.",
            file=sys.stderr,
        )
    print(f"http://{f'[{host}]' if ':' in host else host}:{port}/", flush=True)
    reloader.start()
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
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
