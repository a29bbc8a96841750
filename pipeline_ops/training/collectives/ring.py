"""The all-reduce of workers that train on CPUs: a ring of plain sockets or shared memory.

TensorFlow's own collectives send every tensor through gRPC, which for a small network takes as long
as half of a step. Its servers also listen on all interfaces and ask for no credentials.
`ring_strategy.py` makes a strategy of the ring, and `rendezvous.py` connects the workers. GPUs use
NCCL instead of the ring.

Neighbors on one host do not send the vector. Each adds it up in memory that the next one reads, and
sends a byte when a part of it is ready. The socket also shows that a peer has ended or is silent.
The error makes the supervisor restart the gang.

One worker adds up each part of the vector, in the order of the ring, and passes the sum on
unchanged. All workers therefore end with the same bytes, on any host. Two workers that read each
other's memory both add up the whole vector, which takes one exchange per step instead of two. The
sum of two numbers is the same in either order.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import time
from collections.abc import Callable, Iterator
from itertools import accumulate

import numpy as np

from pipeline_ops.errors import MachineError
from pipeline_ops.system.readiness import wait_until_ready

_READY = b"r"
_POLL_SECONDS = 0.0005
"""Time to poll for a neighbor on this host before this thread sleeps.

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
    """This worker's position in the ring.

    It sends to the next worker and receives from the previous one.

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
        self._shares_memory, self._reads_memory = (
            peer.family == socket.AF_UNIX for peer in (to_next, from_previous)
        )
        self._is_pair = workers == 2 and self._shares_memory and self._reads_memory
        self._totals = self._previous = np.empty((2, 0), np.float32)
        self._received = np.empty(0, np.float32)
        self._calls = 0
        for peer in (to_next, from_previous):
            if peer.family != socket.AF_UNIX:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setblocking(False)

    def all_reduce(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """Returns the sums of all workers' float32 arrays, the same bytes on every worker.

        Args:
          arrays: Arrays with the same shapes on all workers.

        Raises:
          MachineError: A peer has closed its connection, or is silent.
        """
        ends = list(accumulate((array.size for array in arrays), initial=0))
        sections = [slice(start, end) for start, end in zip(ends, ends[1:], strict=False)]
        total, previous = self._get_buffers(ends[-1])
        for array, section in zip(arrays, sections, strict=True):
            total[section] = array.reshape(-1)
        if self._is_pair:
            self._exchange(total, previous)
        else:
            self._run_ring(total, previous)
        sums = [_allocate_aligned(array.size) for array in arrays]
        for result, section in zip(sums, sections, strict=True):
            if self._is_pair:
                np.add(total[section], previous[section], out=result)
            else:
                np.copyto(result, total[section])
        return [total.reshape(array.shape) for total, array in zip(sums, arrays, strict=True)]

    def gather(self, message: bytes) -> list[bytes]:
        """Returns the messages of all workers, in order. All have the same number of bytes."""
        rows = np.zeros((self.workers, len(message)), np.float32)
        rows[self.worker] = np.frombuffer(message, np.uint8)
        [total] = self.all_reduce(rows)
        return [row.astype(np.uint8).tobytes() for row in total]

    def _get_buffers(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the vector of this worker, and that of the previous worker if it is readable.

        Calls reuse the same memory, because fresh memory costs more than the work on it. Two
        vectors alternate, because the next worker may still read the result of the last call. It
        has finished with the call before that one, because it took part in the last.
        """
        if self._totals.shape[1] < length:
            self._allocate_buffers(length)
        self._calls += 1
        return self._totals[self._calls % 2, :length], self._previous[self._calls % 2, :length]

    def _allocate_buffers(self, length: int) -> None:
        """Allocates memory. All workers do so in the same call, because their lengths are equal."""
        self._received = np.empty(
            0 if self._reads_memory else -(-length // self.workers), np.float32
        )
        if self._shares_memory:
            memory = os.memfd_create("trainyard-ring")
            os.ftruncate(memory, 2 * length * self._totals.itemsize)
            self._send_memory(memory)
            self._totals = _map_memory(memory, length)
        else:
            self._totals = np.zeros((2, length), np.float32)
        if self._reads_memory:
            self._previous = _map_memory(self._receive_memory(), length)

    def _run_ring(self, total: np.ndarray, previous: np.ndarray) -> None:
        """Turns this worker's vector into the sum over all workers.

        Both rounds visit the parts in descending order. A part stays unchanged until the neighbour
        has read it, because its sum returns only after all workers have added to it.
        """
        ends = [len(total) * part // self.workers for part in range(self.workers + 1)]
        parts = [slice(start, end) for start, end in zip(ends, ends[1:], strict=False)]
        # Adds up. At the end, this worker has the whole sum of the part after its own.
        for turn in range(self.workers - 1):
            outgoing, incoming = (
                parts[(self.worker - turn - offset) % self.workers] for offset in (0, 1)
            )
            received = (
                previous[incoming]
                if self._reads_memory
                else self._received[: incoming.stop - incoming.start]
            )
            self._exchange(total[outgoing], received)
            total[incoming] += received
        # Passes the sums on.
        for turn in range(self.workers - 1):
            outgoing, incoming = (
                parts[(self.worker - turn - offset) % self.workers] for offset in (-1, 0)
            )
            self._exchange(total[outgoing], total[incoming])
            if self._reads_memory:
                total[incoming] = previous[incoming]

    def _exchange(self, outgoing: np.ndarray, incoming: np.ndarray) -> None:
        """Sends one array to the next worker and receives another at the same time.

        Two workers that only send would wait for each other forever. An array in shared memory is
        not sent. One byte signals that it is ready.
        """
        unsent = memoryview(_READY) if self._shares_memory else outgoing.data.cast("B")
        missing = (
            memoryview(bytearray(len(_READY))) if self._reads_memory else incoming.data.cast("B")
        )
        while unsent or missing:
            readable, writable = self._wait_for(
                [self._from_previous] if missing else [], [self._to_next] if unsent else []
            )
            if readable:
                missing = missing[self._receive_into(missing) :]
            if writable:
                with self._convert_errors(+1):
                    unsent = unsent[self._to_next.send(unsent) :]

    def _receive_into(self, buffer: memoryview) -> int:
        with self._convert_errors(-1):
            return _check_open(self._from_previous.recv_into(buffer))

    def _send_memory(self, memory: int) -> None:
        with self._convert_errors(+1):
            socket.send_fds(self._to_next, [_READY], [memory])

    def _receive_memory(self) -> int:
        self._wait_for([self._from_previous], [])
        with self._convert_errors(-1):
            message, memories, _, _ = socket.recv_fds(self._from_previous, len(_READY), 1)
            _check_open(len(message))
        return memories[0]

    def _wait_for(
        self, sources: list[socket.socket], targets: list[socket.socket]
    ) -> tuple[list[socket.socket], list[socket.socket]]:
        """Returns the sockets that can be read and those that can be written."""
        readable, writable = self._poll(sources, targets) if self._reads_memory else ([], [])
        if not readable and not writable:
            readable, writable = wait_until_ready(sources, targets, self._timeout_seconds)
        if not readable and not writable:
            silent = self._describe_neighbor(-1 if sources else +1)
            raise MachineError(
                f"{silent} has been silent for {self._timeout_seconds:g} s "
                "(train.step_timeout_seconds). See its log."
            )
        return readable, writable

    @staticmethod
    def _poll(
        sources: list[socket.socket], targets: list[socket.socket]
    ) -> tuple[list[socket.socket], list[socket.socket]]:
        """Polls for `_POLL_SECONDS`. Returns the same as `_wait_for`, or empty lists."""
        end = time.perf_counter() + _POLL_SECONDS
        while True:
            readable, writable = wait_until_ready(sources, targets, 0)
            if readable or writable or time.perf_counter() > end:
                return readable, writable
            os.sched_yield()

    @contextlib.contextmanager
    def _convert_errors(self, side: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise MachineError(
                f"the connection to {self._describe_neighbor(side)} is lost: {error}. See its log."
            ) from error

    def _describe_neighbor(self, side: int) -> str:
        return f"worker {(self.worker + side) % self.workers}"

    def close(self) -> None:
        self._to_next.close()
        self._from_previous.close()


def _check_open(count: int) -> int:
    if not count:
        raise ConnectionResetError("the worker closed it")
    return count


def _map_memory(memory: int, length: int) -> np.ndarray:
    """Maps two vectors in the memory of a file, and closes the file.

    The memory lives as long as a process maps it.
    """
    try:
        return np.frombuffer(
            mmap.mmap(memory, 2 * length * np.float32().itemsize), np.float32
        ).reshape(2, length)
    finally:
        os.close(memory)


def _allocate_aligned(length: int) -> np.ndarray:
    """Allocates memory that TensorFlow adopts without a copy."""
    buffer = np.empty(length + _ALIGNMENT, np.float32)
    first = -(buffer.ctypes.data // buffer.itemsize) % _ALIGNMENT
    return buffer[first : first + length]
