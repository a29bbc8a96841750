"""Random requests on raw sockets. Each case is one of `http_corpus/`,
changed at random places by a seed.

TRAINYARD_FUZZ_CASES is their number. A case that fails is printed. It belongs into the corpus.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from export.http_server import Running, read_to_end, running, statuses

CASES = int(os.environ.get("TRAINYARD_FUZZ_CASES", 300))
BATCHES = 10
CORPUS = {
    file.stem: file.read_bytes()
    for file in sorted((Path(__file__).parent / "http_corpus").iterdir())
}
DOCUMENTED = {100, 200, 400, 403, 404, 405, 408, 413, 421, 431, 501}
PIECES = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"\0",
    b" ",
    b":",
    b",",
    b"Content-Length: 5\r\n",
    b"content-length:0\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive\r\n",
    b"Host: [::1\r\n",
    b"Expect: 100-continue\r\n",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"-1",
    b"9" * 5000,
    b"[" * 1500,
    b'{"b64":',
    b'"\\ud800"',
    b"NaN",
    b"1e999",
    b"%00",
    b"%",
    b"/../",
    b":predict",
    b"\xff\xfe",
    "é".encode(),
    b"POST ",
    b"GET ",
    b"HTTP/1.1",
    b"HTTP/9.9",
    b"/versions/",
    b"x" * 20_000,
]


def cut(random_: random.Random, case: bytes) -> bytes:
    begin, end = sorted(random_.randrange(len(case) + 1) for _ in range(2))
    return case[:begin] + case[end:]


def insert(random_: random.Random, case: bytes) -> bytes:
    at = random_.randrange(len(case) + 1)
    return case[:at] + random_.choice(PIECES) + case[at:]


def flip(random_: random.Random, case: bytes) -> bytes:
    at = random_.randrange(len(case))
    return case[:at] + bytes([random_.randrange(256)]) + case[at + 1 :]


def repeat_a_line(random_: random.Random, case: bytes) -> bytes:
    lines = case.splitlines(keepends=True)
    at = random_.randrange(len(lines))
    return b"".join([*lines[:at], lines[at], *lines[at:]])


def splice(random_: random.Random, case: bytes) -> bytes:
    other = random_.choice(list(CORPUS.values()))
    return case[: random_.randrange(len(case) + 1)] + other[random_.randrange(len(other)) :]


CHANGES: list[Callable[[random.Random, bytes], bytes]] = [
    cut,
    insert,
    insert,
    flip,
    repeat_a_line,
    splice,
]


def make_case(seed: int) -> list[bytes]:
    """The parts in which a request is sent."""
    random_ = random.Random(seed)
    case = random_.choice(list(CORPUS.values()))
    for _ in range(random_.randrange(1, 5)):
        case = random_.choice(CHANGES)(random_, case or b"G")
    at = random_.randrange(len(case) + 1)
    return [part for part in (case[:at], case[at:]) if part]


def ask(server: Running, parts: list[bytes]) -> bytes:
    """What comes back when the client sends the parts and closes its side."""
    with server.connect() as connection:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
        with contextlib.suppress(OSError):
            connection.shutdown(1)
        return read_to_end(connection)


@pytest.fixture(scope="module")
def server():
    with running(head_seconds=5, body_seconds=5, idle_seconds=5) as server:
        yield server


@pytest.mark.parametrize("name", CORPUS)
def test_a_request_of_the_corpus_gets_a_documented_status(server, name):
    assert set(statuses(ask(server, [CORPUS[name]]))) <= DOCUMENTED and server.is_alive()


@pytest.mark.parametrize("batch", range(BATCHES))
def test_whatever_is_sent_gets_a_documented_status_and_the_next_client_its_answer(
    server, caplog, batch
):
    """F18."""
    for seed in range(batch, CASES, BATCHES):
        parts = make_case(seed)
        received = ask(server, parts)
        assert set(statuses(received)) <= DOCUMENTED, (seed, parts, received)
        assert not received or statuses(received), (seed, parts, received)
        assert server.is_alive(), (seed, parts)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], (
        caplog.text
    )
