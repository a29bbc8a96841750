"""The ring of workers: sums that are the same bytes everywhere, and peers that fail."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from listeners import ListenerWatch, listeners

from pipeline_ops.errors import MachineError
from pipeline_ops.training.collectives.rendezvous import hear, listen, split_address
from pipeline_ops.training.collectives.ring import Ring, join_ring

TIMEOUT_SECONDS = 60.0
TOKEN = os.urandom(16)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in held]


def near_addresses(workers: int) -> list[str]:
    """All on one host. Nothing listens at the ports."""
    return [f"127.0.0.1:{port}" for port in range(1, workers + 1)]


def far_addresses(workers: int) -> list[str]:
    """Each on another address, as on hosts of their own."""
    return [f"127.0.0.{number}:{port}" for number, port in enumerate(free_ports(workers), 1)]


def together(addresses: list[str], work) -> list:
    """What each worker returns, called with its ring."""

    def life(worker: int):
        ring = join_ring(worker, addresses, TOKEN, TIMEOUT_SECONDS, TIMEOUT_SECONDS)
        try:
            return work(worker, ring)
        finally:
            ring.close()

    with ThreadPoolExecutor(len(addresses)) as pool:
        return list(pool.map(life, range(len(addresses))))


def connected(family: int) -> tuple[socket.socket, socket.socket]:
    """Both ends: of a Unix connection, as on one host, or of a TCP connection, as between hosts."""
    if family == socket.AF_UNIX:
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


NEAR, FAR = socket.AF_UNIX, socket.AF_INET
on_either = pytest.mark.parametrize("family", [NEAR, FAR], ids=["one-host", "two-hosts"])


def ring_over(families: list[int], work) -> list:
    """What each worker returns, called with its ring; worker `i` is connected to the next one by
    family `i`."""
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
    """Each is late in other calls; the sums of earlier calls are looked at in the end, and the
    calls are of different lengths."""

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
    with pytest.raises(MachineError, match="worker 0 is gone: it has closed its connection"):
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

    said, went = ring_over([family] * 2, life)
    assert went == "went"
    assert said.startswith("worker 1 is gone: ")


@on_either
def test_a_silent_peer_is_named(family):
    (to_next, next_end), (previous_end, from_previous) = connected(family), connected(family)
    ring = Ring(0, 2, to_next, from_previous, 0.2)
    with pytest.raises(MachineError, match=r"worker 1 has been silent for 0\.2 s"):
        ring.all_reduce(np.zeros(9, np.float32))
    for end in (next_end, previous_end):
        end.close()
    ring.close()


def sum_of_ones(worker: int, ring: Ring) -> list[float]:
    return list(ring.all_reduce(np.ones(3, np.float32))[0])


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_of_one_host_meet_without_a_port(workers):
    """F5."""
    with ListenerWatch(lambda: [os.getpid()]) as watch:
        sums = together(
            near_addresses(workers),
            lambda worker, ring: time.sleep(0.5) or sum_of_ones(worker, ring),
        )
    assert sums == [[workers] * 3] * workers
    assert watch.looks and watch.seen == set()


def test_workers_on_other_hosts_listen_at_the_planned_address_until_they_have_met():
    """F15."""
    addresses = far_addresses(2)
    with ListenerWatch(lambda: [os.getpid()]) as watch, pytest.raises(MachineError):
        join_ring(0, addresses, TOKEN, 1.0, TIMEOUT_SECONDS)  # nobody else comes
    assert watch.seen == {addresses[0]}
    assert together(
        addresses, lambda worker, ring: sum_of_ones(worker, ring) and listeners([os.getpid()])
    ) == [set(), set()]


class Scan:
    """A port scanner: connects, says nothing, garbage or half of an answer, and holds many
    connections open."""

    def __init__(self, address: str):
        self._address, self._ended, self.connected = split_address(address), threading.Event(), 0
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._scan, daemon=True)

    def __enter__(self) -> Scan:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        self._thread.join()
        for one in self._open:
            one.close()

    def _scan(self) -> None:
        words = itertools.cycle([b"", b"GET / HTTP/1.1\r\n\r\n", b"x" * 48, b"x" * 20, b"x" * 5000])
        while not self._ended.is_set():
            with contextlib.suppress(OSError):
                self._open.append(socket.create_connection(self._address, 0.5))
                self.connected += 1
                self._open[-1].sendall(next(words))
            if len(self._open) > 100:
                self._open.pop(0).close()


def test_a_port_scan_does_not_end_the_start_of_a_gang():
    """F15: the ring read from the first caller, with the timeout of a whole step."""
    addresses = far_addresses(2)
    with Scan(addresses[0]) as one, Scan(addresses[1]) as other, ThreadPoolExecutor(2) as pool:
        first = pool.submit(join_ring, 0, addresses, TOKEN, TIMEOUT_SECONDS, TIMEOUT_SECONDS)
        wait_until(lambda: one.connected > 150)  # more than it holds open
        second = pool.submit(join_ring, 1, addresses, TOKEN, TIMEOUT_SECONDS, TIMEOUT_SECONDS)
        rings = [first.result(), second.result()]
        assert list(pool.map(sum_of_ones, range(2), rings)) == [[2, 2, 2]] * 2
    assert other.connected
    for ring in rings:
        ring.close()


def wait_until(is_so, seconds: float = TIMEOUT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_client_without_the_token_gets_a_challenge_and_nothing_else():
    """F5."""
    addresses = far_addresses(2)
    near, far = listen(0, TOKEN, addresses[0], True)
    with near, far, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(hear, 0, 1, [near, far], TOKEN, time.monotonic() + 3)
        with socket.create_connection(split_address(addresses[0]), 5) as client:
            client.sendall(b"x" * 48)
            said = b"".join(iter(lambda: client.recv(4096), b""))
        with pytest.raises(TimeoutError):
            waiting.result()
    assert len(said) == 16, "a random challenge"


def test_a_worker_with_another_token_is_a_stranger():
    addresses = near_addresses(2)
    with ThreadPoolExecutor(2) as pool:
        joining = [
            pool.submit(join_ring, worker, addresses, token, 1.0, 1.0)
            for worker, token in enumerate([TOKEN, TOKEN[::-1]])
        ]
        for one in joining:
            with pytest.raises(MachineError, match="could not join the ring"):
                one.result()


def test_who_took_a_workers_port_learns_nothing_and_is_not_trusted():
    """A stranger that listens where the next worker should be gets a digest of its own challenge,
    and no ring."""
    addresses, heard = far_addresses(2), []
    with socket.create_server(split_address(addresses[1])) as thief:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    caller, _ = thief.accept()
                    with caller:
                        caller.sendall(b"c" * 16)
                        heard.append(caller.recv(48))
                        caller.sendall(b"p" * 32)

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(MachineError, match="could not join the ring"):
            join_ring(0, addresses, TOKEN, 3.0, TIMEOUT_SECONDS)
        thief.shutdown(socket.SHUT_RDWR)
    assert heard and not any(TOKEN in said for said in heard)


def test_a_port_that_is_taken_is_named():
    addresses = far_addresses(2)
    with (
        socket.create_server(split_address(addresses[0])),
        pytest.raises(MachineError, match=f"worker 0 at {addresses[0]} .*Address already in use"),
    ):
        join_ring(0, addresses, TOKEN, 1.0, TIMEOUT_SECONDS)


def test_what_each_worker_says_reaches_all_in_their_order():
    said = [bytes([worker, 255 - worker, 0]) * 50 for worker in range(3)]
    assert together(near_addresses(3), lambda worker, ring: ring.gather(said[worker])) == [said] * 3


def test_a_worker_that_does_not_come_is_named():
    for addresses in (near_addresses(2), far_addresses(2)):
        with pytest.raises(
            MachineError,
            match=(
                f"worker 0 at {addresses[0]} could not join the ring, .* worker 1 at {addresses[1]}"
            ),
        ):
            join_ring(0, addresses, TOKEN, 1.0, TIMEOUT_SECONDS)
