"""The process of the S3 server.

It prints its address, and ends when its standard input is closed.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class Handler(WSGIRequestHandler):
    """Says nothing. Werkzeug closes each connection after one request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log(self, type: str, message: str, *args: object) -> None:
        pass


class OneAtATime:
    """moto behind a lock: it needs two steps for a conditional put, which must be one.

    Bodies of several requests are read and written at the same time.
    """

    def __init__(self, moto: Callable[..., Iterable[bytes]]):
        self._moto = moto
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
        num_bytes = int(environ.get("CONTENT_LENGTH") or 0)
        if not environ.get("wsgi.input_terminated"):
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(num_bytes))
        with self._lock:
            return self._moto(environ, respond)


def main(host: str = "127.0.0.1") -> None:
    """Serves at an address of this machine."""
    app = OneAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server(host, 0, app, threaded=True, request_handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://{host}:{server.server_port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
