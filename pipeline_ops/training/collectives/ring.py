"""The all-reduce of workers that train on CPUs: a ring of plain sockets or shared memory.

TensorFlow's own collectives send every tensor through gRPC, which for a small network takes as long
as half of a step. Its servers also listen on all interfaces and ask for no credentials.
`ring_strategy.py` makes a strategy of the ring, and `rendezvous.py` connects the workers. GPUs use
NCCL instead of the ring.

Neighbours on one host do not send the vector. Each adds it up in memory that the next one reads,
and sends a byte when a part of it is ready. A peer that is gone or silent therefore shows at its
socket here, too. The error makes the supervisor restart the gang.

One worker adds up each part of the vector, in the order of the ring, and passes the sum on
unchanged. So all workers end with the same bytes, on any host. Two workers that read each other's
memory both add up the whole vector, so that they meet once in a step instead of twice. The sum of
two numbers is the same in either order.
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
"""Time to poll for a neighbour on this host before this thread sleeps.

Workers in step are seldom further apart, and waking a thread takes longer than its next work.
Polling yields the core to other threads.
"""
_ALIGNMENT = 16
"""The alignment, in numbers, of memory that TensorFlow adopts without a copy."""

Gather = Callable[[bytes], list[bytes]]
"""Returns the messages of all workers, in the order of the workers.

All messages must have the same number of bytes.
"""


class Ring:
    """This worker's place in the ring. It sends to the next worker and hears the previous one.

    Args:
      worker: This worker's number.
      workers: The number of workers, at least two.
      to_next: A connected socket. A Unix socket if the next worker reads this worker's memory.
      from_previous: A connected socket. A Unix socket if this worker reads the previous one's
        memory.
      timeout_seconds: The longest silence of a peer.
    """

    def __init__(
        self,
        worker: int,
        workers: int,
        to_next: socket.socket,
        from_previous: socket.socket,
        timeout_seconds: float,
    ):
        self.worker, self.workers, self._timeout_seconds = worker, workers, timeout_seconds
        self._to_next, self._from_previous = to_next, from_previous
        self._lends, self._borrows = (
            peer.family == socket.AF_UNIX for peer in (to_next, from_previous)
        )
        self._is_pair = workers == 2 and self._lends and self._borrows
        self._totals = self._previous = np.empty((2, 0), np.float32)
        self._received = np.empty(0, np.float32)
        self._calls = 0
        for peer in (to_next, from_previous):
            if peer.family != socket.AF_UNIX:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setblocking(False)

    def all_reduce(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """The sums of all workers' float32 arrays, the same bytes on every worker.

        Args:
          arrays: Arrays with the same shapes on all workers.

        Raises:
          MachineError: A peer has closed its connection, or is silent.
        """
        ends = list(accumulate((array.size for array in arrays), initial=0))
        places = [slice(start, end) for start, end in zip(ends, ends[1:], strict=False)]
        total, previous = self._room_for(ends[-1])
        for array, place in zip(arrays, places, strict=True):
            total[place] = array.reshape(-1)
        if self._is_pair:
            self._exchange(total, previous)
            sums = [
                np.add(
                    total[place], previous[place], out=_room_of_its_own(place.stop - place.start)
                )
                for place in places
            ]
        else:
            self._add_up(total, previous)
            sums = [
                np.positive(total[place], out=_room_of_its_own(place.stop - place.start))
                for place in places
            ]
        return [total.reshape(array.shape) for total, array in zip(sums, arrays, strict=True)]

    def gather(self, said: bytes) -> list[bytes]:
        """The messages of all workers, in order. All have the same number of bytes."""
        rows = np.zeros((self.workers, len(said)), np.float32)
        rows[self.worker] = np.frombuffer(said, np.uint8)
        [total] = self.all_reduce(rows)
        return [row.astype(np.uint8).tobytes() for row in total]

    def _room_for(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """The vector of this worker, and that of the previous worker if it is readable.

        Calls reuse the same memory, because fresh memory costs more than the work on it. Two
        vectors alternate, because the next worker may still read the result of the last call. It
        has finished with the call before that one, because it took part in the last.
        """
        if self._totals.shape[1] < length:
            self._make_room(length)
        self._calls += 1
        return self._totals[self._calls % 2, :length], self._previous[self._calls % 2, :length]

    def _make_room(self, length: int) -> None:
        """Allocates memory. All workers do so in the same call, because their lengths are equal."""
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
        """Turns this worker's vector into the sum over all workers.

        Both rounds visit the parts in descending order. A part stays unchanged until the neighbour
        has read it, because its sum returns only after all workers have added to it.
        """
        ends = [len(total) * part // self.workers for part in range(self.workers + 1)]
        parts = [slice(start, end) for start, end in zip(ends, ends[1:], strict=False)]
        for turn in range(
            self.workers - 1
        ):  # adds up: at the end, this worker has the whole sum of the part after its own
            outgoing, incoming = (
                parts[(self.worker - turn) % self.workers],
                parts[(self.worker - turn - 1) % self.workers],
            )
            received = (
                previous[incoming]
                if self._borrows
                else self._received[: incoming.stop - incoming.start]
            )
            self._exchange(total[outgoing], received)
            total[incoming] += received
        for turn in range(self.workers - 1):  # passes the sums on
            outgoing, incoming = (
                parts[(self.worker - turn + 1) % self.workers],
                parts[(self.worker - turn) % self.workers],
            )
            self._exchange(total[outgoing], total[incoming])
            if self._borrows:
                total[incoming] = previous[incoming]

    def _exchange(self, outgoing: np.ndarray, incoming: np.ndarray) -> None:
        """Sends one array to the next worker and receives another at the same time.

        Two workers that only send would wait for each other forever. An array in shared memory is
        not sent: one byte says that it is ready.
        """
        unsent = memoryview(_READY) if self._lends else memoryview(outgoing).cast("B")
        missing = (
            memoryview(bytearray(len(_READY))) if self._borrows else memoryview(incoming).cast("B")
        )
        while unsent or missing:
            readable, writable = self._wait_for(
                [self._from_previous] if missing else [], [self._to_next] if unsent else []
            )
            if readable:
                missing = missing[self._receive_into(missing) :]
            if writable:
                with self._naming(+1):
                    unsent = unsent[self._to_next.send(unsent) :]

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

    def _wait_for(
        self, sources: list[socket.socket], targets: list[socket.socket]
    ) -> tuple[list[socket.socket], list[socket.socket]]:
        """Returns the sockets that can be read and those that can be written."""
        readable, writable = self._watch(sources, targets) if self._borrows else ([], [])
        if not readable and not writable:
            readable, writable, _ = select.select(sources, targets, [], self._timeout_seconds)
        if not readable and not writable:
            silent = self._neighbour(-1 if sources else +1)
            raise MachineError(
                f"{silent} has been silent for {self._timeout_seconds:g} s "
                "(train.step_timeout_seconds)"
            )
        return readable, writable

    @staticmethod
    def _watch(
        sources: list[socket.socket], targets: list[socket.socket]
    ) -> tuple[list[socket.socket], list[socket.socket]]:
        """Polls for `_WATCH_SECONDS`. Returns the same as `_wait_for`, or empty lists."""
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
    """Two vectors in the memory of a file, which is closed.

    The memory lives as long as a process maps it.
    """
    try:
        return np.frombuffer(
            mmap.mmap(memory, 2 * length * np.float32().itemsize), np.float32
        ).reshape(2, length)
    finally:
        os.close(memory)


def _room_of_its_own(length: int) -> np.ndarray:
    """Allocates memory that TensorFlow adopts without a copy."""
    room = np.empty(length + _ALIGNMENT, np.float32)
    first = -(room.ctypes.data // room.itemsize) % _ALIGNMENT
    return room[first : first + length]


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
            is_far = _host(addresses[previous]) != _host(addresses[worker])
            listeners = listen(worker, token, addresses[worker], is_far)
            for listener in listeners:
                stack.enter_context(listener)
            heard = pool.submit(hear, worker, previous, listeners, token, deadline)
            is_far = _host(addresses[following]) != _host(addresses[worker])
            to_next = call(
                worker, following, addresses[following] if is_far else None, token, deadline
            )
            return Ring(worker, workers, to_next, heard.result(), timeout_seconds)
    except OSError as error:
        raise MachineError(
            f"worker {worker} at {addresses[worker]} could not join the ring, "
            f"between worker {previous} at {addresses[previous]} and worker {following} at "
            f"{addresses[following]}: {error}; do the hosts reach each other on every port?"
        ) from error


def _host(address: str) -> str:
    return address.rpartition(":")[0]
