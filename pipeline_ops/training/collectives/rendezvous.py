"""The rendezvous of a gang's workers.

Each worker waits for the previous one and connects to the next one. Both prove that they know the
gang's token, which the launcher draws for each incarnation and sends through its pipes. The token
itself never travels: each side answers the other's random challenge with a digest. Workers on one
host meet at a Unix socket and open no port. Other connections (a port scan, a monitor, an attacker)
are closed after a second and disturb nothing.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import ipaddress
import secrets
import select
import socket
import time

_CHALLENGE_BYTES = 16
_PROOF_BYTES = 32
_ANSWER_BYTES = _PROOF_BYTES + _CHALLENGE_BYTES
_HANDSHAKE_SECONDS = 1.0
_MOST_CALLERS = 200
"""The limit of simultaneous handshakes. Another caller takes the place of the oldest one."""
_BACKLOG = 1024
_RETRY_SECONDS = 0.02


def listen(worker: int, token: bytes, address: str, has_far_peers: bool) -> list[socket.socket]:
    """Opens a Unix socket, and one with a port for a previous worker on another host.

    Args:
      worker: This worker's number.
      token: The gang's secret.
      address: `host:port` of this worker.
      has_far_peers: Whether the previous worker is on another host.

    Raises:
      OSError: The port is taken.
    """
    near = socket.socket(socket.AF_UNIX)
    near.bind(_near(worker, token))
    near.listen(_BACKLOG)
    return [near, _listen_at(address)] if has_far_peers else [near]


def _listen_at(address: str) -> socket.socket:
    """Listens at the planned address.

    The host itself may not have this address (address translation), and Debian maps a host's name
    to a loopback address on the host itself. In both cases it listens at all addresses.
    """
    host, port = split_address(address)
    family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    own = place[0] if place[0] == host or not ipaddress.ip_address(place[0]).is_loopback else ""
    try:
        return socket.create_server((own, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("", port), family=family, backlog=_BACKLOG)


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _near(worker: int, token: bytes) -> str:
    """An address in the kernel's own namespace. Other users see it, so it hides the token."""
    return f"\0trainyard-ring-{_proof(token, f'name of {worker}').hex()}"


def _proof(token: bytes, words: str, challenge: bytes = b"") -> bytes:
    return hmac.digest(token, words.encode() + b"\0" + challenge, hashlib.sha256)


def call(
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
            return _call_once(worker, peer, address, token, deadline)
        except (OSError, EOFError) as error:  # not there yet, or another program has its port
            if time.monotonic() > deadline:
                raise OSError(str(error)) from error
        time.sleep(_RETRY_SECONDS)


def _call_once(
    worker: int, peer: int, address: str | None, token: bytes, deadline: float
) -> socket.socket:
    with contextlib.ExitStack() as stack:
        if address is None:
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(_HANDSHAKE_SECONDS)
            connection.connect(_near(peer, token))
        else:
            left = max(_RETRY_SECONDS, deadline - time.monotonic())
            connection = stack.enter_context(
                socket.create_connection(split_address(address), min(left, 5.0))
            )
        connection.settimeout(_HANDSHAKE_SECONDS)
        theirs, ours = (
            _read_exactly(connection, _CHALLENGE_BYTES),
            secrets.token_bytes(_CHALLENGE_BYTES),
        )
        connection.sendall(_proof(token, f"{worker} calls {peer}", theirs) + ours)
        if not hmac.compare_digest(
            _read_exactly(connection, _PROOF_BYTES), _proof(token, f"{peer} hears {worker}", ours)
        ):
            raise ConnectionRefusedError(f"a stranger answers at {address or 'the Unix socket'}")
        stack.pop_all()
        return connection


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := connection.recv(count - len(data))):
            raise EOFError("it has closed the connection")
        data += more
    return data


def hear(
    worker: int, peer: int, listeners: list[socket.socket], token: bytes, deadline: float
) -> socket.socket:
    """Returns the connection of the previous worker, out of all incoming connections.

    Args:
      worker: This worker's number.
      peer: The previous worker's number.
      listeners: The sockets from `listen`.
      token: The gang's secret.
      deadline: The deadline, on the clock of `time.monotonic`.

    Raises:
      TimeoutError: The previous worker has not called before the deadline.
    """
    callers: dict[socket.socket, _Caller] = {}
    for listener in listeners:
        listener.setblocking(False)  # a caller may be gone before it is accepted
    try:
        while (now := time.monotonic()) < deadline:
            for one in [one for one, caller in callers.items() if now > caller.until]:
                callers.pop(one).connection.close()
            readable, _, _ = select.select(
                [*listeners, *callers], [], [], min(_HANDSHAKE_SECONDS, deadline - now) / 4
            )
            for one in readable:
                if one in callers:
                    caller = callers[one]
                    if not caller.read():
                        callers.pop(one).connection.close()
                    elif caller.is_peer(worker, peer, token):
                        callers.pop(one)
                        return one
                elif caller := _accept(one):
                    callers[caller.connection] = caller
            while len(callers) > _MOST_CALLERS:
                callers.pop(next(iter(callers))).connection.close()
        raise TimeoutError(f"worker {peer} has not called")
    finally:
        for caller in callers.values():
            caller.connection.close()


def _accept(listener: socket.socket) -> _Caller | None:
    """Accepts one connection. Returns None if the caller is gone again."""
    with contextlib.suppress(OSError):
        connection, _ = listener.accept()
        try:
            return _Caller(connection)
        except OSError:
            connection.close()
    return None


class _Caller:
    """A connection that has a second to prove that it comes from the previous worker."""

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        self.connection, self.until = connection, time.monotonic() + _HANDSHAKE_SECONDS
        self._challenge, self._said = secrets.token_bytes(_CHALLENGE_BYTES), b""
        connection.send(self._challenge)

    def read(self) -> bool:
        """Reads more of the answer. Returns False once the connection is closed."""
        try:
            more = self.connection.recv(_ANSWER_BYTES - len(self._said))
        except OSError:
            return False
        self._said += more
        return bool(more)

    def is_peer(self, worker: int, peer: int, token: bytes) -> bool:
        """Returns whether the answer is complete and right. If so, sends this worker's proof."""
        wanted = _proof(token, f"{peer} calls {worker}", self._challenge)
        if len(self._said) < _ANSWER_BYTES or not hmac.compare_digest(
            self._said[:_PROOF_BYTES], wanted
        ):
            return False
        self.connection.setblocking(True)
        self.connection.settimeout(_HANDSHAKE_SECONDS)
        with contextlib.suppress(OSError):
            self.connection.sendall(
                _proof(token, f"{worker} hears {peer}", self._said[_PROOF_BYTES:])
            )
            return True
        return False
