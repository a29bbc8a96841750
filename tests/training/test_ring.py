"""The ring of workers: sums that are the same bytes everywhere, and peers that fail."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pipeline_ops.contracts.errors import MachineError
from pipeline_ops.training.ring import Ring, join_ring

TIMEOUT_SECONDS = 20.0


class Board:
    """Stands for the strategy's all-gather: what every worker has said, once all have."""

    def __init__(self, workers: int):
        self._said: dict[int, bytes] = {}
        self._all = threading.Barrier(workers)

    def gather(self, worker: int, value: bytes) -> list[bytes]:
        self._said[worker] = value
        self._all.wait(TIMEOUT_SECONDS)
        return [self._said[worker] for worker in sorted(self._said)]


def together(workers: int, work) -> list:
    """What each worker returns, called with its ring."""
    board = Board(workers)

    def life(worker: int):
        ring = join_ring(worker, workers, "127.0.0.1", lambda value: board.gather(worker, value), TIMEOUT_SECONDS)
        try:
            return work(worker, ring)
        finally:
            ring.close()

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(life, range(workers)))


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("length", [0, 1, 4, 1001, 3_000_000], ids=lambda length: f"{length}-numbers")
def test_every_worker_gets_the_same_sum_to_the_byte(workers, length):
    vectors = np.random.default_rng(length).normal(size=(workers, length)).astype(np.float32)
    sums = together(workers, lambda worker, ring: [ring.all_reduce(vectors[worker]) for _ in range(2)])
    expected = vectors.astype(np.float64).sum(0)
    for first, second in sums:
        np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-5)
        assert first.tobytes() == second.tobytes() == sums[0][0].tobytes()


def test_the_vector_that_is_summed_is_left_as_it_was():
    vectors = np.ones((2, 8), np.float32)
    together(2, lambda worker, ring: ring.all_reduce(vectors[worker]))
    np.testing.assert_array_equal(vectors, 1)


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


def test_a_peer_that_is_gone_is_named():
    (to_next, next_end), (previous_end, from_previous) = connected(), connected()
    ring = Ring(1, 3, to_next, from_previous, TIMEOUT_SECONDS)
    previous_end.close()
    with pytest.raises(MachineError, match="worker 0 is gone: it has closed its connection"):
        ring.all_reduce(np.zeros(9, np.float32))
    next_end.close()
    ring.close()


def test_a_silent_peer_is_named():
    (to_next, next_end), (previous_end, from_previous) = connected(), connected()
    ring = Ring(0, 2, to_next, from_previous, 0.2)
    with pytest.raises(MachineError, match=r"worker 1 has been silent for 0\.2 s"):
        ring.all_reduce(np.zeros(9, np.float32))
    for end in (next_end, previous_end):
        end.close()
    ring.close()


def test_a_stranger_that_does_not_know_the_token_is_refused():
    board = Board(2)

    def gather(worker: int, value: bytes) -> list[bytes]:
        said = board.gather(worker, value)
        if worker == 0:  # somebody else comes first
            stranger = socket.create_connection(("127.0.0.1", int(said[1].split()[-1])))
            stranger.sendall(b"x" * 16)
            strangers.append(stranger)
        return said

    strangers: list[socket.socket] = []
    with ThreadPoolExecutor(2) as pool:
        rings = list(pool.map(lambda worker: join_ring(worker, 2, "127.0.0.1", lambda value: gather(worker, value), TIMEOUT_SECONDS), range(2)))
        sums = list(pool.map(lambda ring: ring.all_reduce(np.ones(3, np.float32)), rings))
    assert [list(total) for total in sums] == [[2, 2, 2]] * 2
    for end in (*rings, *strangers):
        end.close()


def test_a_worker_that_does_not_come_is_named():
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        place = f"127.0.0.1 {nobody.getsockname()[1]}".encode().ljust(80)
    with pytest.raises(MachineError, match="worker 0 could not join the ring, to worker 1 at 127.0.0.1"):
        join_ring(0, 2, "127.0.0.1", lambda value: [value, b"x" * 16 + place], 1.0)
