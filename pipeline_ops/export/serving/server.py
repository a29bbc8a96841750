"""The HTTP server of `trainyard serve` and of the export job's last check.

It is for smoke tests and demos. It speaks TensorFlow Serving's REST form and follows an alias
without a restart. It does not replace TensorFlow Serving: it has no batching of requests, no gRPC,
no TLS and no login. For this reason, it listens on this machine alone, except with another
`--host`. `service.py` has the paths, `http_app.py` and `http_protocol.py` the limits.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Collection

import uvicorn

from pipeline_ops.export.serving.http_app import Application
from pipeline_ops.export.serving.http_limits import Limits
from pipeline_ops.export.serving.http_protocol import StrictProtocol
from pipeline_ops.export.serving.model_reloader import AliasSource, ModelReloader
from pipeline_ops.export.serving.service import Service
from pipeline_ops.registry.registry import Registry

_BACKLOG = 128


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
        self,
        listener: socket.socket,
        service: Service,
        allowed_names: Collection[str] = (),
        limits: Limits = Limits(),  # noqa: B008
    ):
        self._socket = listener
        self._server = uvicorn.Server(
            uvicorn.Config(
                Application(service, limits, allowed_names).asgi(),
                http=functools.partial(StrictProtocol, limits),  # type: ignore[arg-type]  # a factory
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_keep_alive=limits.idle_seconds,
                timeout_graceful_shutdown=limits.stop_seconds,
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # exit code 0, as after Ctrl-C
    source = AliasSource(Registry(arguments.model), arguments.alias)
    return _serve(arguments, ModelReloader(source))


def _serve(arguments: argparse.Namespace, reloader: ModelReloader) -> int:
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
    server = Server(listener, service, [host, *arguments.allow_host])
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


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


if __name__ == "__main__":
    sys.exit(main())
