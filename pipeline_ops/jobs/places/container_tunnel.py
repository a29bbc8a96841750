"""The way to a Docker daemon over ssh, as a Unix socket on this host.

ssh itself answers each connection to the socket, with `docker system dial-stdio` at the far end. It
never asks a person: a key that needs a passphrase or an unknown host is an error.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from pathlib import Path
from urllib.parse import urlsplit

_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "3",
    "ServerAliveCountMax": "3",
    "LogLevel": "ERROR",
}
_PAUSE_SECONDS = 1.0
_log = logging.getLogger(__name__)
_REFUSALS = ("Permission denied", "Host key verification failed", "not found", "No such file")


class SshTunnel:
    """A socket in a private folder. It lasts as long as this process.

    Args:
      uri: `ssh://user@host:port` of the daemon's host.
    """

    def __init__(self, uri: str):
        self._command = build_tunnel_command(uri)
        folder = tempfile.TemporaryDirectory(prefix="trainyard-ssh-", ignore_cleanup_errors=True)
        self._folder = Path(folder.name)
        weakref.finalize(self, folder.cleanup)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._folder / "socket"))
        self._listener.listen()
        self._clients: list[subprocess.Popen[bytes]] = []
        threading.Thread(target=self._serve, name="tunnel", daemon=True).start()

    @property
    def address(self) -> str:
        return f"unix://{self._folder / 'socket'}"

    @property
    def is_refused(self) -> bool:
        """Returns whether another try can't help."""
        return any(refusal in self.read_problem() for refusal in _REFUSALS)

    def read_problem(self) -> str:
        """The last line that ssh has written. It is silent as long as it works."""
        with contextlib.suppress(OSError):
            lines = (self._folder / "problems").read_text(errors="replace").strip().splitlines()
            return lines[-1][:500] if lines else ""
        return ""

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:  # too many open files
                _log.warning("The tunnel to a Docker daemon: %s", error)
                time.sleep(_PAUSE_SECONDS)
                continue
            with connection, open(self._folder / "problems", "wb") as problems:
                self._clients = [client for client in self._clients if client.poll() is None]
                try:
                    client = subprocess.Popen(
                        self._command,
                        stdin=connection.fileno(),
                        stdout=connection.fileno(),
                        stderr=problems,
                    )
                    self._clients.append(client)
                except OSError:
                    problems.write(b"ssh: command not found. Install an OpenSSH client.\n")


@functools.cache
def open_tunnel(uri: str) -> SshTunnel:
    """The tunnel of this process to a daemon."""
    return SshTunnel(uri)


def build_tunnel_command(uri: str) -> list[str]:
    """The command that connects its input and output with the daemon of another host. Pure."""
    parts = urlsplit(uri)
    login = [
        *(["-l", parts.username] if parts.username else []),
        *(["-p", str(parts.port)] if parts.port else []),
    ]
    options = [part for key, value in _OPTIONS.items() for part in ("-o", f"{key}={value}")]
    # Behind `--`, a name that begins with a hyphen is a name and not an option.
    return ["ssh", "-T", *options, *login, "--", parts.hostname or "", "docker system dial-stdio"]
