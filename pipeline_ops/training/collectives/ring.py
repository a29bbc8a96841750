"""The all-reduce of workers that train on a CPU: one vector goes round a ring of plain sockets, or of shared memory.

TensorFlow's own collectives send every tensor through gRPC, which for a small network takes as long as half of a step. Its servers
also listen on all interfaces and ask for no credentials. `ring_strategy.py` makes a strategy of the ring, and `rendezvous.py` says
how the workers meet. On GPUs, NCCL adds up, and this is not used.

Neighbours on one host don't send the vector: each adds it up in memory that the next one reads, and sends a byte when a part
of it is ready. So a peer shows in the same way, by its socket, that it is gone or silent: that raises, and the supervisor
then restarts the gang.

Every part of the vector is added up by one worker, in the order of the ring, and passed on as it is: all workers end
with the same bytes, wherever they are. Two workers that read each other's memory both add up the whole, so that they meet once
in a step and not twice: of two numbers the sum is the same in either order.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import numpy as np

from pipeline_ops.errors import MachineError
from pipeline_ops.training.collectives.rendezvous import call, hear, listen

_TOKEN_BYTES = 16
_READY = b"r"
_WATCH_SECONDS = 0.0005
"""How long a neighbour on this host is looked for before this thread sleeps. Workers that step together are seldom further apart, and to be
woken takes longer than what they then do; whoever else wants the core gets it meanwhile."""
_ALIGNMENT = 16
"""Numbers, of what TensorFlow asks of memory that it takes over as it is and does not copy."""

Gather = Callable[[bytes], list[bytes]]
"""Gives every worker what each has said, in the order of the workers; all must say equally many bytes."""


class Ring:
    """This worker's place in the ring: it sends to the next worker and receives from the one before.

    Args:
      worker: this worker's number.
      workers: how many there are; two or more.
      to_next: a connected socket; a Unix one where the next worker is to read this one's memory.
      from_previous: likewise.
      timeout_seconds: how long a peer may be silent.
    """

    def __init__(self, worker: int, workers: int, to_next: socket.socket, from_previous: socket.socket, timeout_seconds: float):
        self.worker, self.workers, self._timeout_seconds = worker, workers, timeout_seconds
        self._to_next, self._from_previous = to_next, from_previous
        self._lends, self._borrows = (peer.family == socket.AF_UNIX for peer in (to_next, from_previous))
        self._is_pair = workers == 2 and self._lends and self._borrows
        self._totals = self._previous = np.empty((2, 0), np.float32)
        self._received = np.empty(0, np.float32)
        self._calls = 0
        for peer in (to_next, from_previous):
            if peer.family != socket.AF_UNIX:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setblocking(False)

    def all_reduce(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """The sums over what all workers bring, float32 arrays of the same shapes; the same bytes on every worker.

        Raises:
          MachineError: a peer has closed its connection, or is silent.
        """
        ends = list(accumulate((array.size for array in arrays), initial=0))
        places = [slice(start, end) for start, end in zip(ends, ends[1:], strict=False)]
        total, previous = self._room_for(ends[-1])
        for array, place in zip(arrays, places, strict=True):
            total[place] = array.reshape(-1)
        if self._is_pair:
            self._exchange(total, previous)
            sums = [np.add(total[place], previous[place], out=_room_of_its_own(place.stop - place.start)) for place in places]
        else:
            self._add_up(total, previous)
            sums = [np.positive(total[place], out=_room_of_its_own(place.stop - place.start)) for place in places]
        return [total.reshape(array.shape) for total, array in zip(sums, arrays, strict=True)]

    def gather(self, said: bytes) -> list[bytes]:
        """What each worker has said, in the order of the workers. All say equally many bytes."""
        rows = np.zeros((self.workers, len(said)), np.float32)
        rows[self.worker] = np.frombuffer(said, np.uint8)
        [total] = self.all_reduce(rows)
        return [row.astype(np.uint8).tobytes() for row in total]

    def _room_for(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Where this worker adds up, and where the previous one does, if that can be read.

        The same memory every time, because fresh memory costs more than what is done with it; and two vectors in turn, because the next
        worker may still read what the last call has left. It has finished with the call before that one: it took part in the last.
        """
        if self._totals.shape[1] < length:
            self._make_room(length)
        self._calls += 1
        return self._totals[self._calls % 2, :length], self._previous[self._calls % 2, :length]

    def _make_room(self, length: int) -> None:
        """All workers do so in the same call, because all bring equally much."""
        self._received = np.empty(0 if self._borrows else -(-length // self.workers), np.float32)
        if self._lends:
            memory = os.memfd_create("trainyard-ring")
            os.ftruncate(memory, 2 * length * self._totals.itemsize)
            self._lend(memory)
            self._totals = _mapped(memory, length)
        else:
            self._totals = np.zeros((2, length), np.float32)
        if self._borrows:
            self._previous = _mapped(self._borrow(), length)

    def _add_up(self, total: np.ndarray, previous: np.ndarray) -> None:
        """Makes of this worker's vector the sum of all. In both rounds it comes to the parts one after the other, each time the one before.

        Nobody changes a part that its neighbour has yet to read: a part's sum comes back only when all have added to it.
        """
        ends = [len(total) * part // self.workers for part in range(self.workers + 1)]
        parts = [slice(start, end) for start, end in zip(ends, ends[1:], strict=False)]
        for turn in range(self.workers - 1):  # adds up: in the end, this worker has the whole sum of the part after its own
            outgoing, incoming = parts[(self.worker - turn) % self.workers], parts[(self.worker - turn - 1) % self.workers]
            received = previous[incoming] if self._borrows else self._received[: incoming.stop - incoming.start]
            self._exchange(total[outgoing], received)
            total[incoming] += received
        for turn in range(self.workers - 1):  # passes the sums on
            outgoing, incoming = parts[(self.worker - turn + 1) % self.workers], parts[(self.worker - turn) % self.workers]
            self._exchange(total[outgoing], total[incoming])
            if self._borrows:
                total[incoming] = previous[incoming]

    def _exchange(self, outgoing: np.ndarray, incoming: np.ndarray) -> None:
        """Gives one array to the next worker and fills another, both at once: two workers that only send would wait for each other for ever.

        Of an array in shared memory, no more travels than that it is ready.
        """
        unsent = memoryview(_READY) if self._lends else memoryview(outgoing).cast("B")
        missing = memoryview(bytearray(len(_READY))) if self._borrows else memoryview(incoming).cast("B")
        while unsent or missing:
            readable, writable = self._wait_for([self._from_previous] if missing else [], [self._to_next] if unsent else [])
            if readable:
                missing = missing[self._receive_into(missing):]
            if writable:
                with self._naming(+1):
                    unsent = unsent[self._to_next.send(unsent):]

    def _receive_into(self, buffer: memoryview) -> int:
        with self._naming(-1):
            return _unless_closed(self._from_previous.recv_into(buffer))

    def _lend(self, memory: int) -> None:
        with self._naming(+1):
            socket.send_fds(self._to_next, [_READY], [memory])

    def _borrow(self) -> int:
        self._wait_for([self._from_previous], [])
        with self._naming(-1):
            said, memories, _, _ = socket.recv_fds(self._from_previous, len(_READY), 1)
            _unless_closed(len(said))
        return memories[0]

    def _wait_for(self, sources: list[socket.socket], targets: list[socket.socket]) -> tuple[list[socket.socket], list[socket.socket]]:
        """Those that can be read, and those that can be written."""
        readable, writable = self._watch(sources, targets) if self._borrows else ([], [])
        if not readable and not writable:
            readable, writable, _ = select.select(sources, targets, [], self._timeout_seconds)
        if not readable and not writable:
            silent = self._neighbour(-1 if sources else +1)
            raise MachineError(f"{silent} has been silent for {self._timeout_seconds:g} s (train.step_timeout_seconds)")
        return readable, writable

    @staticmethod
    def _watch(sources: list[socket.socket], targets: list[socket.socket]) -> tuple[list[socket.socket], list[socket.socket]]:
        """As `_wait_for`, for a moment, and without sleep; none where the moment has passed."""
        end = time.perf_counter() + _WATCH_SECONDS
        while True:
            readable, writable, _ = select.select(sources, targets, [], 0)
            if readable or writable or time.perf_counter() > end:
                return readable, writable
            os.sched_yield()

    @contextlib.contextmanager
    def _naming(self, side: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise MachineError(f"{self._neighbour(side)} is gone: {error}") from error

    def _neighbour(self, side: int) -> str:
        return f"worker {(self.worker + side) % self.workers}"

    def close(self) -> None:
        self._to_next.close()
        self._from_previous.close()


def _unless_closed(count: int) -> int:
    if not count:
        raise ConnectionResetError("it has closed its connection")
    return count


def _mapped(memory: int, length: int) -> np.ndarray:
    """Two vectors in the memory of a file, which is closed: whoever has mapped it keeps it, and nothing is left of it when all have ended."""
    try:
        return np.frombuffer(mmap.mmap(memory, 2 * length * np.float32().itemsize), np.float32).reshape(2, length)
    finally:
        os.close(memory)


def _room_of_its_own(length: int) -> np.ndarray:
    """Memory that TensorFlow takes over and does not copy once more."""
    room = np.empty(length + _ALIGNMENT, np.float32)
    first = -(room.ctypes.data // room.itemsize) % _ALIGNMENT
    return room[first:first + length]


def join_ring(worker: int, addresses: Sequence[str], token: bytes, join_seconds: float, timeout_seconds: float) -> Ring:
    """Connects the workers, each with the next one. Called by all at once.

    Args:
      worker: This worker's number.
      addresses: `host:port` of all workers. Those with the same host meet without a port.
      token: The gang's secret, at least 16 bytes.
      join_seconds: How long to wait for the others here.
      timeout_seconds: How long to wait for them in every exchange.

    Raises:
      MachineError: A worker has not come.
    """
    if len(token) < _TOKEN_BYTES:
        raise ValueError(f"the gang's token has {len(token)} bytes and needs {_TOKEN_BYTES}")
    deadline, workers = time.monotonic() + join_seconds, len(addresses)
    following, previous = (worker + 1) % workers, (worker - 1) % workers
    try:
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as pool:
            is_far = _host(addresses[previous]) != _host(addresses[worker])
            listeners = listen(worker, token, addresses[worker], is_far)
            for listener in listeners:
                stack.enter_context(listener)
            heard = pool.submit(hear, worker, previous, listeners, token, deadline)
            is_far = _host(addresses[following]) != _host(addresses[worker])
            to_next = call(worker, following, addresses[following] if is_far else None, token, deadline)
            return Ring(worker, workers, to_next, heard.result(), timeout_seconds)
    except OSError as error:
        raise MachineError(f"worker {worker} at {addresses[worker]} could not join the ring, between worker {previous} at {addresses[previous]} "
                           f"and worker {following} at {addresses[following]}: {error}; do the hosts reach each other on every port?") from error


def _host(address: str) -> str:
    return address.rpartition(":")[0]
