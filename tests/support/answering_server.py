"""A local HTTP server for tests, whose answers are those of a function."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator, Mapping

HEADERS = {"Content-Type": "application/json"}


@contextlib.contextmanager
def answering_server(
    answer: Callable[[str, str], tuple[int, bytes]],
    host: str = "127.0.0.1",
    headers: Mapping[str, str] = HEADERS,
) -> Iterator[str]:
    """Runs a server. Yields its address as `host:port`.

    `answer` makes the status and the content of each response from the method and the path.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content = answer(self.command, self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            """Requests are expected."""

    with http.server.ThreadingHTTPServer((host, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"{host}:{server.server_port}"
        finally:
            server.shutdown()
