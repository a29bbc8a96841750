"""TensorBoard as `trainyard tensorboard` starts it: it answers only to the names of this machine.

A browser can be made to resolve the name of another site to this machine (DNS rebinding). Then
pages of that site could read the trainings. TensorBoard itself takes any name.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
from argparse import Namespace
from collections.abc import Iterable
from urllib.parse import urlsplit
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from tensorboard import default, main_lib, program


def make_server(application: WSGIApplication, flags: Namespace) -> program.WerkzeugServer:
    """Makes the server. One that listens for other machines takes any name, as they have many."""
    if not _is_loopback(flags.host):
        return program.WerkzeugServer(application, flags)
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname().lower()]

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if _parse_name(environ.get("HTTP_HOST", "")) in names:
            return application(environ, start_response)
        start_response("400 Bad Request", [("Content-Type", "text/plain")])
        return [f"Address this server as one of {', '.join(names)}.\n".encode()]

    return program.WerkzeugServer(answer, flags)


def _parse_name(host: str) -> str | None:
    """Returns the name of a Host header, without its port, and None if it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def main() -> None:
    main_lib.global_init()
    tensorboard = program.TensorBoard(plugins=default.get_plugins(), server_class=make_server)
    tensorboard.configure(sys.argv)
    sys.exit(tensorboard.main())


if __name__ == "__main__":
    main()
