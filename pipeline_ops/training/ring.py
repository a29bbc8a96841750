"""The all-reduce of workers that train on a CPU: one vector goes round a ring of plain sockets.

TensorFlow's own collectives send every tensor through gRPC, which for a small network takes as long as half of a step.
The workers are still those of MultiWorkerMirroredStrategy, which tells them each other's addresses here, and reduces
whatever Keras asks it to; only the sum of a step's gradients goes this way. On GPUs, NCCL does it, and this is not used.

Every part of the vector is added up by one worker, in the order of the ring, and passed on as it is: all workers end
with the same bytes. A peer that is gone, or silent, raises; the supervisor then restarts the gang.
"""

from __future__ import annotations

import secrets
import select
import socket
import time
from collections.abc import Callable

import numpy as np

from pipeline_ops.contracts.errors import MachineError

_TOKEN_BYTES = 16

Gather = Callable[[bytes], list[bytes]]
"""Gives every worker what each has said, in the order of the workers; all must say equally many bytes."""


class Ring:
    """This worker's place in the ring: it sends to the next worker and receives from the one before.

    Args:
      worker: this worker's number.
      workers: how many there are; two or more.
      to_next: a connected socket.
      from_previous: a connected socket.
      timeout_seconds: how long a peer may be silent.
    """

    def __init__(self, worker: int, workers: int, to_next: socket.socket, from_previous: socket.socket, timeout_seconds: float):
        self._worker, self._workers, self._timeout_seconds = worker, workers, timeout_seconds
        self._to_next, self._from_previous = to_next, from_previous
        self._received = np.empty(0, np.float32)
        for peer in (to_next, from_previous):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setblocking(False)

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        """The sum over all workers' vectors, float32 [n]; the same bytes on every worker.

        Raises:
          MachineError: a peer has closed its connection, or is silent.
        """
        total = np.array(vector)
        ends = [len(total) * part // self._workers for part in range(self._workers + 1)]
        parts = [total[start:end] for start, end in zip(ends, ends[1:], strict=False)]
        received = self._room_for(max(map(len, parts)))
        for turn in range(self._workers - 1):  # adds up: in the end, this worker has the whole sum of the part after its own
            part = parts[(self._worker - turn - 1) % self._workers]
            self._exchange(parts[(self._worker - turn) % self._workers], received[: len(part)])
            part += received[: len(part)]
        for turn in range(self._workers - 1):  # passes the sums on
            self._exchange(parts[(self._worker - turn + 1) % self._workers], parts[(self._worker - turn) % self._workers])
        return total

    def _room_for(self, count: int) -> np.ndarray:
        """The same memory every time: fresh memory costs more than what is done with it."""
        if len(self._received) < count:
            self._received = np.empty(count, np.float32)
        return self._received

    def _exchange(self, outgoing: np.ndarray, incoming: np.ndarray) -> None:
        """Sends one array and fills another, both at once: two workers that only send would wait for each other for ever."""
        unsent, missing = memoryview(outgoing).cast("B"), memoryview(incoming).cast("B")
        while unsent or missing:
            sources, targets = [self._from_previous] if missing else [], [self._to_next] if unsent else []
            readable, writable, _ = select.select(sources, targets, [], self._timeout_seconds)
            if not readable and not writable:
                raise MachineError(f"{self._waiting_for(bool(missing))} has been silent for {self._timeout_seconds:g} s (train.step_timeout_seconds)")
            try:
                if readable:
                    missing = missing[self._receive_into(missing):]
                if writable:
                    unsent = unsent[self._to_next.send(unsent):]
            except OSError as error:
                raise MachineError(f"{self._waiting_for(bool(readable))} is gone: {error}") from error

    def _receive_into(self, buffer: memoryview) -> int:
        count = self._from_previous.recv_into(buffer)
        if not count:
            raise ConnectionResetError("it has closed its connection")
        return count

    def _waiting_for(self, is_receiving: bool) -> str:
        return f"worker {(self._worker + (-1 if is_receiving else 1)) % self._workers}"

    def close(self) -> None:
        self._to_next.close()
        self._from_previous.close()


def join_ring(worker: int, workers: int, host: str, gather: Gather, timeout_seconds: float) -> Ring:
    """Connects the workers, each with the next one. Called by all at once.

    Args:
      worker: this worker's number.
      workers: how many there are.
      host: the address at which the others reach this one.
      gather: tells the workers each other's ports, and a token by which a stranger's connection is refused.
      timeout_seconds: how long to wait for the others, here and in every exchange.

    Raises:
      MachineError: a worker has not come.
    """
    with socket.create_server(("" if ":" not in host else "::", 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        token = secrets.token_bytes(_TOKEN_BYTES)
        said = gather(token + f"{host} {listener.getsockname()[1]}".encode().ljust(80))
        places = [(entry[_TOKEN_BYTES:].decode().split()[0], int(entry[_TOKEN_BYTES:].decode().split()[1])) for entry in said]
        following = (worker + 1) % workers
        try:
            to_next = socket.create_connection(places[following], timeout_seconds)
            to_next.sendall(said[following][:_TOKEN_BYTES])
            return Ring(worker, workers, to_next, _accept(listener, token, timeout_seconds), timeout_seconds)
        except OSError as error:
            raise MachineError(f"worker {worker} could not join the ring, to worker {following} at {places[following][0]}: {error}; "
                               "do the hosts reach each other on every port?") from error


def _accept(listener: socket.socket, token: bytes, timeout_seconds: float) -> socket.socket:
    """The connection of the worker before: the one that knows our token."""
    deadline = time.monotonic() + timeout_seconds
    while (left := deadline - time.monotonic()) > 0:
        listener.settimeout(left)
        peer, _ = listener.accept()
        peer.settimeout(left)
        if _read_exactly(peer, _TOKEN_BYTES) == token:
            return peer
        peer.close()
    raise TimeoutError("timed out")


def _read_exactly(peer: socket.socket, count: int) -> bytes:
    """Fewer bytes where the peer says no more."""
    data = b""
    while len(data) < count and (more := peer.recv(count - len(data))):
        data += more
    return data
