"""Serves the files of a folder as an S3 bucket, read-only, with a limit of bytes per second.

    python tests/bench/slow_store.py FOLDER BYTES_PER_SECOND

It prints its port and ends with its standard input, with the CPU seconds that it took. The tests'
S3 server reads a whole object for each range of it, so it would measure itself.
"""

from __future__ import annotations

import email.utils
import http.server
import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from object_servers.faults import Throttle  # noqa: E402

_BLOCK_BYTES = 256 << 10


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    folder: Path
    throttle: Throttle

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.folder / self.path.partition("?")[0].split("/", 2)[2]
        if not path.is_file():
            self.send_error(404)
            return
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            start, end = 0, size
            if wanted := self.headers.get("Range"):
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                start, end = int(first), min(size, int(last) + 1 if last else size)
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.send_header("Content-Length", str(end - start))
            self.send_header("ETag", '"0"')
            self.send_header("Last-Modified", email.utils.formatdate(usegmt=True))
            self.end_headers()
            self.wfile.flush()
            while start < end and self.command == "GET":
                count = min(_BLOCK_BYTES, end - start)
                self.throttle.wait(count)
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, count)

    do_HEAD = do_GET


def main() -> None:
    Handler.folder, Handler.throttle = Path(sys.argv[1]), Throttle(float(sys.argv[2]))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    print(time.process_time(), flush=True)


if __name__ == "__main__":
    main()
