"""The rendezvous of a ring: access, secrets, and the workers that an error names."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from listeners import ListenerMonitor, find_listeners
from rings import TIMEOUT_SECONDS, TOKEN, far_addresses, near_addresses, together

from pipeline_ops.errors import MachineError
from pipeline_ops.training.collectives.rendezvous import (
    accept_peer,
    join_ring,
    open_listeners,
    split_address,
)
from pipeline_ops.training.collectives.ring import Ring


def sum_of_ones(worker: int, ring: Ring) -> list[float]:
    return list(ring.all_reduce(np.ones(3, np.float32))[0])


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_of_one_host_meet_without_a_port(workers):
    """F5."""
    with ListenerMonitor(lambda: [os.getpid()]) as watch:
        sums = together(
            near_addresses(workers),
            lambda worker, ring: time.sleep(0.5) or sum_of_ones(worker, ring),
        )
    assert sums == [[workers] * 3] * workers
    assert watch.num_polls and watch.seen == set()


def test_workers_on_other_hosts_listen_at_the_planned_address_until_they_have_met():
    """F15."""
    addresses, before = far_addresses(2), find_listeners([os.getpid()])
    with ListenerMonitor(lambda: [os.getpid()]) as watch, pytest.raises(MachineError):
        join_ring(0, addresses, TOKEN, 1.0, TIMEOUT_SECONDS)  # no other worker comes
    assert watch.seen == {addresses[0]}
    assert together(
        addresses, lambda worker, ring: sum_of_ones(worker, ring) and find_listeners([os.getpid()])
    ) == [before, before]


class Scan:
    """A port scanner. It connects, sends nothing, garbage or half of an answer, and holds many
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


def test_a_process_with_many_open_files_joins_and_computes():
    """N10: `select` takes no descriptor above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.enter_context(open(os.devnull))
        assert together(near_addresses(2), sum_of_ones) == [[2] * 3] * 2


def test_a_client_without_the_token_gets_a_challenge_and_nothing_else():
    """F5."""
    addresses = far_addresses(2)
    near, far = open_listeners(0, TOKEN, addresses[0], True)
    with near, far, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(accept_peer, 0, 1, [near, far], TOKEN, time.monotonic() + 3)
        with socket.create_connection(split_address(addresses[0]), 5) as client:
            client.sendall(b"x" * 48)
            received = b"".join(iter(lambda: client.recv(4096), b""))
        with pytest.raises(TimeoutError):
            waiting.result()
    assert len(received) == 16, "a random challenge"


def test_a_worker_with_another_token_is_a_stranger():
    addresses = near_addresses(2)
    with ThreadPoolExecutor(2) as pool:
        joining = [
            pool.submit(join_ring, worker, addresses, token, 1.0, 1.0)
            for worker, token in enumerate([TOKEN, TOKEN[::-1]])
        ]
        for one in joining:
            with pytest.raises(MachineError, match="cannot join the ring"):
                one.result()


def test_who_took_a_workers_port_learns_nothing_and_is_not_trusted():
    """Another program that listens at the address of the next worker gets a digest of its own
    challenge, and does not join the ring."""
    addresses, received = far_addresses(2), []
    with socket.create_server(split_address(addresses[1])) as thief:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    caller, _ = thief.accept()
                    with caller:
                        caller.sendall(b"c" * 16)
                        received.append(caller.recv(48))
                        caller.sendall(b"p" * 32)

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(MachineError, match="cannot join the ring"):
            join_ring(0, addresses, TOKEN, 3.0, TIMEOUT_SECONDS)
        thief.shutdown(socket.SHUT_RDWR)
    assert received and not any(TOKEN in message for message in received)


def test_a_port_that_is_taken_is_named():
    addresses = far_addresses(2)
    with (
        socket.create_server(split_address(addresses[0])),
        pytest.raises(MachineError, match=f"worker 0 at {addresses[0]} .*Address already in use"),
    ):
        join_ring(0, addresses, TOKEN, 1.0, TIMEOUT_SECONDS)


def test_a_worker_that_does_not_come_is_named():
    for addresses in (near_addresses(2), far_addresses(2)):
        with pytest.raises(
            MachineError,
            match=(
                f"worker 0 at {addresses[0]} cannot join the ring .* worker 1 at {addresses[1]}"
            ),
        ):
            join_ring(0, addresses, TOKEN, 1.0, TIMEOUT_SECONDS)
