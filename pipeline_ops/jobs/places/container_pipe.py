"""Carries a pipe to a command in a container: standard input, output and errors, byte for byte.

    python -m pipeline_ops.jobs.places.container_pipe PIPE

PIPE is a `ContainerPipe` as JSON. A container that is not there is created first, so a host of a
gang that has died comes back when it is tried again. The pipe ends when either end closes it, with
the exit code of the command. If this process is killed, the daemon closes the input of the command.

The library of Docker can start a command, too, and may lose what the command prints in the first
moment. So this module speaks HTTP itself for this one request.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import ssl
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from pipeline_ops.errors import ExitCode, MachineError, TrainyardError
from pipeline_ops.jobs.places.container_daemon import Daemon

_CONNECT_SECONDS = 20.0
_CREATE_SECONDS = 20.0
_POLL_SECONDS = 0.2
_END_SECONDS = 3.0
_CHUNK_BYTES = 64 << 10
_MAX_WAITING_BYTES = 1 << 20
_FRAME_HEADER_BYTES = 8
_STDERR_FRAME = 2


class ContainerPipe(BaseModel):
    """The container and the command to connect with. It is on a command line, and holds no secret.

    Attributes:
      daemon: the address of the daemon. None is the default one.
      container: the name of the container.
      body: the request that creates it.
      command: the command to run in it.
    """

    model_config = ConfigDict(frozen=True)

    daemon: str | None
    container: str
    body: dict[str, Any]
    command: list[str]


def main() -> int:
    pipe = ContainerPipe.model_validate_json(sys.argv[1])
    daemon = Daemon(pipe.daemon)
    try:
        ensure_running(daemon, pipe.container, pipe.body)
        with daemon.connect() as api:
            command = api.exec_create(pipe.container, pipe.command, stdin=True)["Id"]
        path = f"/v{daemon.api_version}/exec/{command}/start"
        with open_stream(daemon, path) as (connection, first):
            _Carrier(connection, first).run()
        return _wait_for_exit_code(daemon, command)
    except TrainyardError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    except OSError as error:
        print(f"the pipe through the Docker daemon {daemon.address}: {error}", file=sys.stderr)
        return ExitCode.RETRY


def ensure_running(daemon: Daemon, name: str, body: dict[str, Any]) -> None:
    """Starts a container unless it runs. An ended one is replaced, with an empty disk.

    Raises:
      MachineError: another one is being removed for too long, or the daemon failed.
      ConfigError: the daemon refuses the container.
    """
    deadline = time.monotonic() + _CREATE_SECONDS
    while time.monotonic() < deadline:
        found = daemon.inspect(name)
        if found is None:
            daemon.create(name, body)
        elif found["State"]["Status"] == "running":
            return
        elif found["State"]["Status"] == "created":
            daemon.start(name)
        else:
            daemon.remove(name)
            time.sleep(_POLL_SECONDS)
    raise MachineError(f"the container {name} has not started within {_CREATE_SECONDS:.0f} s")


@contextlib.contextmanager
def open_stream(daemon: Daemon, path: str) -> Any:
    """Starts a created command. Yields its connection, and the bytes that have arrived with it.

    Raises:
      MachineError: the daemon refuses to start it.
    """
    with _connect(daemon) as connection:
        body = json.dumps({"Detach": False, "Tty": False})
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            if not (data := connection.recv(_CHUNK_BYTES)):
                break
            answer += data
        head, _, first = answer.partition(b"\r\n\r\n")
        status = head.partition(b"\r\n")[0]
        if status.split()[1:2] not in ([b"101"], [b"200"]):
            problem = (status + b" " + first).decode(errors="replace").strip()
            raise MachineError(f"the Docker daemon {daemon.address}: {problem or 'no answer'}")
        connection.settimeout(None)
        yield connection, first


def _connect(daemon: Daemon) -> socket.socket:
    address = daemon.socket_address
    if address.startswith("unix://"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_CONNECT_SECONDS)
        connection.connect(address.removeprefix("unix://"))
        return connection
    parts = urlsplit(address)
    host, port = parts.hostname or "localhost", parts.port or 2376
    connection = socket.create_connection((host, port), _CONNECT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if daemon.certificates is None:
        return connection
    context = ssl.create_default_context(cafile=str(daemon.certificates / "ca.pem"))
    context.load_cert_chain(daemon.certificates / "cert.pem", daemon.certificates / "key.pem")
    return context.wrap_socket(connection, server_hostname=host)


class _Carrier:
    """Copies in both directions, and waits for neither of them alone.

    Args:
      connection: the connection to the command.
      first: the bytes of it that were read already.
    """

    def __init__(self, connection: socket.socket, first: bytes):
        self._connection, self._frames = connection, bytearray(first)
        self._waiting = bytearray()
        self._has_input = True

    def run(self) -> None:
        """Copies until the command closes its output."""
        self._connection.setblocking(False)
        self._write_frames()
        while True:
            if self._has_pending() or self._wait_until_ready():
                if (data := self._receive()) == b"":
                    return
                self._frames += data or b""
                self._write_frames()
            self._send()
            if not self._has_input and not self._waiting and not self._close_input():
                return

    def _has_pending(self) -> bool:
        """Returns whether there are bytes that were decrypted already."""
        return isinstance(self._connection, ssl.SSLSocket) and self._connection.pending() > 0

    def _wait_until_ready(self) -> bool:
        """Waits for any side, and reads the input. Returns whether the command has sent data."""
        wants_input = self._has_input and len(self._waiting) < _MAX_WAITING_BYTES
        inputs: list[Any] = [self._connection, *([0] if wants_input else [])]
        outputs = [self._connection] if self._waiting else []
        readable, _, _ = select.select(inputs, outputs, [])
        if 0 in readable:
            data = os.read(0, _CHUNK_BYTES)
            self._waiting += data
            self._has_input = bool(data)
        return self._connection in readable

    def _receive(self) -> bytes | None:
        """The bytes that have arrived. None if there are none yet, and b"" at the end."""
        try:
            return self._connection.recv(_CHUNK_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except (ConnectionError, ssl.SSLError):
            return b""

    def _send(self) -> None:
        if not self._waiting:
            return
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            try:
                del self._waiting[: self._connection.send(self._waiting)]
            except ConnectionError:  # what it has printed at its end is still to be read
                self._waiting.clear()
                self._has_input = False

    def _close_input(self) -> bool:
        """Closes the input of the command. Returns whether its output can still be read.

        TLS has no half-open connection.
        """
        if isinstance(self._connection, ssl.SSLSocket):
            return False
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        self._has_input, self._waiting = False, bytearray()
        return True

    def _write_frames(self) -> None:
        """Writes the whole frames: a byte for the stream, three zeros, the length, the content."""
        while len(self._frames) >= _FRAME_HEADER_BYTES:
            end = _FRAME_HEADER_BYTES + int.from_bytes(self._frames[4:_FRAME_HEADER_BYTES])
            if len(self._frames) < end:
                return
            descriptor = 2 if self._frames[0] == _STDERR_FRAME else 1
            _write_all(descriptor, bytes(self._frames[_FRAME_HEADER_BYTES:end]))
            del self._frames[:end]


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _wait_for_exit_code(daemon: Daemon, command: str) -> int:
    deadline = time.monotonic() + _END_SECONDS
    while True:
        with daemon.connect() as api:
            state = api.exec_inspect(command)
        if not state["Running"]:
            return int(state["ExitCode"])
        if time.monotonic() > deadline:
            return ExitCode.RETRY
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
