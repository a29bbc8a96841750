"""A proxy in a process of its own, for tests whose own process is too busy.

    python tests/support/object_servers/proxy_process.py http://127.0.0.1:<port of the server>

It prints its address and that of its control, and ends when its standard input is closed. The
control takes a PUT with the fields of `Faults` as JSON, and a GET gives faults and traffic.
"""

from __future__ import annotations

import http.server
import json
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from object_servers.fault_proxy import FaultProxy  # noqa: E402
from object_servers.faults import Faults  # noqa: E402


class Control(http.server.BaseHTTPRequestHandler):
    """Sets the faults of the proxy, and reports what came through."""

    proxy: FaultProxy

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            self.proxy.faults = Faults(**json.loads(body))
        except (TypeError, ValueError) as error:
            self._give(400, {"error": str(error)})
        else:
            self.do_GET()

    def do_GET(self) -> None:
        traffic = {method: asdict(found) for method, found in self.proxy.traffic.items()}
        self._give(200, {"faults": asdict(self.proxy.faults), "traffic": traffic})

    def do_DELETE(self) -> None:
        self.proxy.reset_traffic()
        self.do_GET()

    def _give(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    with FaultProxy(sys.argv[1]) as proxy:
        Control.proxy = proxy
        control = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Control)
        threading.Thread(target=control.serve_forever, daemon=True).start()
        print(f"{proxy.address} http://127.0.0.1:{control.server_port}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
