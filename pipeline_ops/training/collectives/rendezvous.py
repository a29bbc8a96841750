"""The rendezvous of a gang's workers, which connects them to a ring.

Each worker waits for the previous one and connects to the next one. Both prove that they know the
gang's token, which the launcher draws for each incarnation and sends through its pipes. The token
itself never travels. Each side answers the other's random challenge with a digest. Workers on one
host meet at a Unix socket and open no port. Other connections (a port scan, a monitor, an attacker)
are closed after a second.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import ipaddress
import secrets
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pipeline_ops.errors import MachineError
from pipeline_ops.system.readiness import wait_until_ready
from pipeline_ops.training.collectives.ring import Ring

_TOKEN_BYTES = 16
_CHALLENGE_BYTES = 16
_PROOF_BYTES = 32
_ANSWER_BYTES = _PROOF_BYTES + _CHALLENGE_BYTES
_HANDSHAKE_SECONDS = 1.0
_MAX_PENDING_CONNECTIONS = 200
"""The limit of simultaneous handshakes. A new connection beyond it closes the oldest one."""
_BACKLOG = 1024
_RETRY_SECONDS = 0.02


def join_ring(
    worker: int, addresses: Sequence[str], token: bytes, join_seconds: float, timeout_seconds: float
) -> Ring:
    """Connects each worker with the next one. All workers call it at the same time.

    Args:
      worker: This worker's number.
      addresses: `host:port` of all workers. Those with the same host meet without a port.
      token: The gang's secret, at least 16 bytes.
      join_seconds: The timeout for the other workers to join.
      timeout_seconds: The timeout for the other workers in every exchange.

    Raises:
      MachineError: A worker has not joined.
    """
    if len(token) < _TOKEN_BYTES:
        raise ValueError(f"the gang's token has {len(token)} bytes and needs {_TOKEN_BYTES}")
    deadline, workers = time.monotonic() + join_seconds, len(addresses)
    following, previous = (worker + 1) % workers, (worker - 1) % workers
    try:
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as pool:
            host = _parse_host(addresses[worker])
            is_remote = _parse_host(addresses[previous]) != host
            listeners = open_listeners(worker, token, addresses[worker], is_remote)
            for listener in listeners:
                stack.enter_context(listener)
            accepted = pool.submit(accept_peer, worker, previous, listeners, token, deadline)
            is_remote = _parse_host(addresses[following]) != host
            to_next = connect_to_peer(
                worker, following, addresses[following] if is_remote else None, token, deadline
            )
            return Ring(worker, workers, to_next, accepted.result(), timeout_seconds)
    except OSError as error:
        raise MachineError(
            f"worker {worker} at {addresses[worker]} cannot join the ring between worker "
            f"{previous} at {addresses[previous]} and worker {following} at "
            f"{addresses[following]}: {error}. Check that the hosts reach each other on every port."
        ) from error


def open_listeners(
    worker: int, token: bytes, address: str, has_remote_peer: bool
) -> list[socket.socket]:
    """Opens a Unix socket, and one with a port for a previous worker on another host.

    Args:
      worker: This worker's number.
      token: The gang's secret.
      address: `host:port` of this worker.
      has_remote_peer: Whether the previous worker is on another host.

    Raises:
      OSError: The port is taken.
    """
    unix_listener = socket.socket(socket.AF_UNIX)
    unix_listener.bind(_make_unix_address(worker, token))
    unix_listener.listen(_BACKLOG)
    return [unix_listener, _listen_on_port(address)] if has_remote_peer else [unix_listener]


def _listen_on_port(address: str) -> socket.socket:
    """Listens at the planned address.

    The host itself may not have this address (address translation), and Debian maps a host's name
    to a loopback address on the host itself. In both cases it listens at all addresses.
    """
    host, port = split_address(address)
    family, *_, resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bind_host = (
        resolved[0]
        if resolved[0] == host or not ipaddress.ip_address(resolved[0]).is_loopback
        else ""
    )
    try:
        return socket.create_server((bind_host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("", port), family=family, backlog=_BACKLOG)


def _parse_host(address: str) -> str:
    """Returns the host. An address that no worker connects to may have no valid port."""
    return address.rpartition(":")[0]


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _make_unix_address(worker: int, token: bytes) -> str:
    """Returns an address in the kernel's own namespace. It hides the token from other users."""
    return f"\0trainyard-ring-{_compute_proof(token, f'name of {worker}').hex()}"


def _compute_proof(token: bytes, message: str, challenge: bytes = b"") -> bytes:
    return hmac.digest(token, message.encode() + b"\0" + challenge, hashlib.sha256)


def connect_to_peer(
    worker: int, peer: int, address: str | None, token: bytes, deadline: float
) -> socket.socket:
    """Connects to the next worker as soon as it listens.

    Args:
      worker: This worker's number.
      peer: The next worker's number.
      address: `host:port` of the next worker. None if it is on this host.
      token: The gang's secret.
      deadline: The deadline, on the clock of `time.monotonic`.

    Raises:
      OSError: There was no connection before the deadline.
    """
    while True:
        try:
            return _connect_once(worker, peer, address, token, deadline)
        except (OSError, EOFError) as error:  # not there yet, or another program has its port
            if time.monotonic() > deadline:
                raise OSError(str(error)) from error
        time.sleep(_RETRY_SECONDS)


def _connect_once(
    worker: int, peer: int, address: str | None, token: bytes, deadline: float
) -> socket.socket:
    with contextlib.ExitStack() as stack:
        if address is None:
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(_HANDSHAKE_SECONDS)
            connection.connect(_make_unix_address(peer, token))
        else:
            left = max(_RETRY_SECONDS, deadline - time.monotonic())
            connection = stack.enter_context(
                socket.create_connection(split_address(address), min(left, 5.0))
            )
        connection.settimeout(_HANDSHAKE_SECONDS)
        peer_challenge = _read_exactly(connection, _CHALLENGE_BYTES)
        own_challenge = secrets.token_bytes(_CHALLENGE_BYTES)
        connection.sendall(
            _compute_proof(token, f"{worker} calls {peer}", peer_challenge) + own_challenge
        )
        if not hmac.compare_digest(
            _read_exactly(connection, _PROOF_BYTES),
            _compute_proof(token, f"{peer} hears {worker}", own_challenge),
        ):
            raise ConnectionRefusedError(
                f"{address or 'the Unix socket'} answers without the gang's token"
            )
        stack.pop_all()
        return connection


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := connection.recv(count - len(data))):
            raise EOFError("the peer closed the connection")
        data += more
    return data


def accept_peer(
    worker: int, peer: int, listeners: list[socket.socket], token: bytes, deadline: float
) -> socket.socket:
    """Returns the connection of the previous worker, out of all incoming connections.

    Args:
      worker: This worker's number.
      peer: The previous worker's number.
      listeners: The sockets from `open_listeners`.
      token: The gang's secret.
      deadline: The deadline, on the clock of `time.monotonic`.

    Raises:
      TimeoutError: The previous worker has not connected before the deadline.
    """
    pending: dict[socket.socket, _PendingConnection] = {}
    for listener in listeners:
        listener.setblocking(False)  # a client may be gone before it is accepted
    try:
        while (now := time.monotonic()) < deadline:
            for expired in [key for key, candidate in pending.items() if now > candidate.deadline]:
                pending.pop(expired).connection.close()
            readable, _ = wait_until_ready(
                [*listeners, *pending],
                timeout_seconds=min(_HANDSHAKE_SECONDS, deadline - now) / 4,
            )
            for ready in readable:
                if ready in pending:
                    candidate = pending[ready]
                    if not candidate.read():
                        pending.pop(ready).connection.close()
                    elif candidate.is_peer(worker, peer, token):
                        pending.pop(ready)
                        return ready
                elif accepted := _accept(ready):
                    pending[accepted.connection] = accepted
            while len(pending) > _MAX_PENDING_CONNECTIONS:
                pending.pop(next(iter(pending))).connection.close()
        raise TimeoutError(f"worker {peer} has not connected")
    finally:
        for candidate in pending.values():
            candidate.connection.close()


def _accept(listener: socket.socket) -> _PendingConnection | None:
    """Accepts one connection. Returns None if the client is gone."""
    with contextlib.suppress(OSError):
        connection, _ = listener.accept()
        try:
            return _PendingConnection(connection)
        except OSError:
            connection.close()
    return None


class _PendingConnection:
    """A connection that has a second to prove that it comes from the previous worker."""

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        self.connection, self.deadline = connection, time.monotonic() + _HANDSHAKE_SECONDS
        self._challenge, self._answer = secrets.token_bytes(_CHALLENGE_BYTES), b""
        connection.send(self._challenge)

    def read(self) -> bool:
        """Reads more of the answer. Returns False once the connection is closed."""
        try:
            more = self.connection.recv(_ANSWER_BYTES - len(self._answer))
        except OSError:
            return False
        self._answer += more
        return bool(more)

    def is_peer(self, worker: int, peer: int, token: bytes) -> bool:
        """Returns whether the answer is complete and right. If so, sends this worker's proof."""
        expected = _compute_proof(token, f"{peer} calls {worker}", self._challenge)
        if len(self._answer) < _ANSWER_BYTES or not hmac.compare_digest(
            self._answer[:_PROOF_BYTES], expected
        ):
            return False
        self.connection.setblocking(True)
        self.connection.settimeout(_HANDSHAKE_SECONDS)
        with contextlib.suppress(OSError):
            self.connection.sendall(
                _compute_proof(token, f"{worker} hears {peer}", self._answer[_PROOF_BYTES:])
            )
            return True
        return False
