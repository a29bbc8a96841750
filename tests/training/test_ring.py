"""The ring of workers: sums that are the same bytes everywhere, and peers that fail."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from rings import TIMEOUT_SECONDS, near_addresses, together

from pipeline_ops.errors import MachineError
from pipeline_ops.training.collectives.ring import Ring


def connected(family: int) -> tuple[socket.socket, socket.socket]:
    """Returns both ends of a Unix connection, as on one host, or of a TCP connection, as between
    hosts."""
    if family == socket.AF_UNIX:
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


NEAR, FAR = socket.AF_UNIX, socket.AF_INET
on_either = pytest.mark.parametrize("family", [NEAR, FAR], ids=["one-host", "two-hosts"])


def ring_over(families: list[int], work) -> list:
    """Calls `work` for each worker with its ring. Returns the results. Worker `i` is connected to
    the next one by family `i`."""
    links = [connected(family) for family in families]
    rings = [
        Ring(worker, len(links), links[worker][0], links[worker - 1][1], TIMEOUT_SECONDS)
        for worker in range(len(links))
    ]
    with ThreadPoolExecutor(len(rings)) as pool:
        results = list(pool.map(work, range(len(rings)), rings))
    for ring in rings:
        ring.close()
    return results


@pytest.mark.parametrize(
    "families",
    [[NEAR] * 2, [NEAR] * 3, [NEAR] * 5, [FAR] * 2, [FAR] * 3, [NEAR, FAR, NEAR, FAR]],
    ids=lambda families: "-".join("near" if family == NEAR else "far" for family in families),
)
@pytest.mark.parametrize("length", [0, 1, 4, 1001, 300_000], ids=lambda length: f"{length}-numbers")
def test_every_worker_gets_the_same_sum_to_the_byte(families, length):
    vectors = np.random.default_rng(length).normal(size=(len(families), length)).astype(np.float32)
    sums = ring_over(
        families, lambda worker, ring: [ring.all_reduce(vectors[worker])[0] for _ in range(2)]
    )
    expected = vectors.astype(np.float64).sum(0)
    for first, second in sums:
        np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-5)
        assert first.tobytes() == second.tobytes() == sums[0][0].tobytes()


def test_it_makes_no_difference_to_the_byte_where_the_workers_are():
    vectors = np.random.default_rng(0).normal(size=(3, 1001)).astype(np.float32)
    sums = [
        ring_over(families, lambda worker, ring: ring.all_reduce(vectors[worker])[0].tobytes())
        for families in ([NEAR] * 3, [FAR] * 3, [FAR, NEAR, NEAR])
    ]
    assert len({one for each in sums for one in each}) == 1


@pytest.mark.parametrize(
    "families", [[NEAR] * 2, [NEAR] * 4, [NEAR, NEAR, FAR]], ids=["two", "four", "over-two-hosts"]
)
def test_a_worker_that_hurries_ahead_changes_nothing_that_a_late_one_reads(families):
    """Each worker is late in other calls. The sums of earlier calls are compared at the end, and
    the calls have different lengths."""

    def life(worker: int, ring: Ring) -> list[np.ndarray]:
        late, sums = np.random.default_rng(worker), []
        for call in range(150):
            time.sleep(0.002 if late.random() < 0.1 else 0)
            sums.append(
                ring.all_reduce(
                    np.full(40_000 if call % 3 else 400, call * (worker + 1), np.float32)
                )[0]
            )
        return sums

    factor = sum(range(1, len(families) + 1))
    for sums in ring_over(families, life):
        assert [(len(total), set(total)) for total in sums] == [
            (40_000 if call % 3 else 400, {call * factor}) for call in range(150)
        ]


def test_arrays_of_any_shape_come_back_in_theirs():
    arrays = [
        np.ones((2, 3), np.float32),
        np.float32(2),
        np.zeros((0, 4), np.float32),
        np.arange(5, dtype=np.float32),
    ]
    for sums in ring_over([NEAR, NEAR], lambda worker, ring: ring.all_reduce(*arrays)):
        assert [total.shape for total in sums] == [(2, 3), (), (0, 4), (5,)]
        for total, array in zip(sums, arrays, strict=True):
            np.testing.assert_array_equal(total, 2 * array)


@on_either
def test_what_is_summed_is_left_as_it_was(family):
    vectors = np.ones((2, 8), np.float32)
    ring_over([family] * 2, lambda worker, ring: ring.all_reduce(vectors[worker]))
    np.testing.assert_array_equal(vectors, 1)


def test_workers_of_one_host_share_memory():
    def kinds(worker: int, ring: Ring) -> list[str]:
        ring.all_reduce(np.zeros(1000, np.float32))
        return [
            line.split()[-1]
            for line in Path("/proc/self/maps").read_text().splitlines()
            if "trainyard-ring" in line
        ]

    assert any(together(near_addresses(2), kinds))


@on_either
def test_a_peer_that_is_gone_is_named(family):
    (to_next, next_end), (previous_end, from_previous) = connected(family), connected(family)
    ring = Ring(1, 3, to_next, from_previous, TIMEOUT_SECONDS)
    previous_end.close()
    with pytest.raises(
        MachineError, match="the connection to worker 0 is lost: the worker closed it. See its log."
    ):
        ring.all_reduce(np.zeros(9, np.float32))
    next_end.close()
    ring.close()


@on_either
def test_a_peer_that_goes_after_some_steps_is_named(family):
    def life(worker: int, ring: Ring) -> str:
        for _ in range(3 if worker else 10):
            try:
                ring.all_reduce(np.zeros(9, np.float32))
            except MachineError as error:
                return str(error)
        ring.close()
        return "went"

    error, went = ring_over([family] * 2, life)
    assert went == "went"
    assert error.startswith("the connection to worker 1 is lost: ")


@on_either
def test_a_silent_peer_is_named(family):
    (to_next, next_end), (previous_end, from_previous) = connected(family), connected(family)
    ring = Ring(0, 2, to_next, from_previous, 0.2)
    with pytest.raises(MachineError, match=r"worker 1 has been silent for 0\.2 s"):
        ring.all_reduce(np.zeros(9, np.float32))
    for end in (next_end, previous_end):
        end.close()
    ring.close()


def test_what_each_worker_says_reaches_all_in_their_order():
    messages = [bytes([worker, 255 - worker, 0]) * 50 for worker in range(3)]
    assert (
        together(near_addresses(3), lambda worker, ring: ring.gather(messages[worker]))
        == [messages] * 3
    )
