"""The limits of the server, over raw sockets: the answers of uvicorn, Starlette and the service."""

from __future__ import annotations

import contextlib
import json
import logging
import select
import time

import pytest
from export.http_server import BODY, GET, post, post_as, read_to_end, running, statuses

CLOSE = b"Connection: close\r\n"
UNFINISHED = post_as(b"Content-Length: %d\r\nExpect: 100-continue\r\n" % (63 << 20), b"")
PREDICTED = b'{"predictions": [{"classes": 0, "probabilities": [1.0, 1.0]}]}'


@pytest.fixture(scope="module")
def server():
    with running("localhost", "127.0.0.1", "[::1]", "models.example.org") as server:
        yield server


def get(path: bytes = b"/health", host: bytes = b"localhost") -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (path, host, CLOSE)


@pytest.mark.parametrize(
    "request_, status",
    [
        (b"GET /" + b"y" * 300_000, 400),
        (post_as(b"Content-Length: %d\r\n" % (1 << 40), b""), 413),
        (post_as(b"Transfer-Encoding: chunked\r\n", b"4000001\r\n" + b" " * 0x4000001), 413),
        (post(BODY, b"Content-Length: 4\r\n"), 400),
        (get().replace(b"GET", b"PUT"), 405),
        (get(b"/v1/models/digits/versions/" + b"1" * 4400), 404),
        (get(b"/../../etc/passwd"), 404),
    ],
    ids=["long_line", "long_body", "long_chunk", "two_lengths", "put", "version", "path"],
)
@pytest.mark.models
def test_what_is_too_long_or_not_served_gets_its_status(server, request_, status):
    """F18."""
    received = server.send(request_)
    assert statuses(received)[:1] in ([status], []) and (
        received or status in (413, 400)
    )  # a reset can lose the answer
    assert server.is_alive()


@pytest.mark.parametrize(
    "host, status",
    [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:8501", 200),
        ("models.example.org:80", 200),
        ("attacker.example:8501", 400),
        ("localhost.attacker.example", 400),
        ("[", 400),
    ],
)
def test_a_foreign_name_is_refused_so_that_no_page_can_read_answers_by_rebinding_its_name(
    server, host, status
):
    assert statuses(server.send(get(host=host.encode()))) == [status]


def test_a_page_may_do_nothing_that_this_page_does_not_need(server):
    page = server.send(get(b"/")).lower()
    for header in (
        b"content-security-policy: default-src 'none'",
        b"frame-ancestors 'none'",
        b"x-content-type-options: nosniff",
        b"referrer-policy: no-referrer",
        b"cross-origin-resource-policy: same-origin",
    ):
        assert header in page
    assert b"\r\nserver:" not in page


def test_the_number_of_connections_has_a_limit():
    """F18. One more gets 503, and can come again after others are closed."""
    with running() as server:
        connections = [server.connect() for _ in range(63)]
        for connection in connections:  # each waits for the rest of its body
            connection.sendall(UNFINISHED)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100 ")
        assert statuses(server.send(get())) == [503]
        for connection in connections:
            connection.close()
        deadline = time.monotonic() + 30
        while not server.is_alive():
            assert time.monotonic() < deadline


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n", GET])
def test_silent_connections_keep_nobody_out(sent):
    """M9: 300 connections that are idle, or have sent half a header, meant 503 for all others."""
    with running() as server:
        connections = []
        for _ in range(300):
            connections.append(server.connect())
            connections[-1].sendall(sent)
            if sent == GET:
                assert statuses(connections[-1].recv(1 << 16)) == [200]
        assert all(server.is_alive() for _ in range(3))
        connections[0].settimeout(10)
        assert statuses(read_to_end(connections[0])) == [], "the oldest is closed"
        for connection in connections:
            connection.close()


def test_a_header_that_does_not_arrive_in_time_closes_the_connection():
    """M9: also if a byte comes now and then, and after an answer."""
    with running(idle_seconds=1) as server:
        for before in (b"", GET):
            with server.connect() as connection:
                connection.sendall(before + b"GET /health HTTP/1.1\r\n")
                deadline = time.monotonic() + 20
                with contextlib.suppress(ConnectionError):
                    while time.monotonic() < deadline:
                        connection.sendall(b"X: y\r\n")
                        time.sleep(0.2)
                assert time.monotonic() < deadline


def test_a_body_that_does_not_arrive_in_time_is_refused():
    """M9: also if a byte comes now and then."""
    with running(body_seconds=1) as server, server.connect() as connection:
        connection.sendall(UNFINISHED)
        for _ in range(10):
            connection.sendall(b" ")
            time.sleep(0.2)
        assert statuses(connection.recv(1 << 16)) == [100, 408]
        assert server.is_alive()


@pytest.mark.models
def test_all_bodies_together_have_a_limit():
    """M9: 24 unfinished bodies of 63 MiB were 2 GB. One that is given up makes room again."""
    with running() as server:
        for number in (5, 4):
            connections = [server.connect() for _ in range(number)]
            for connection in connections:
                connection.sendall(UNFINISHED)
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100 ")
            for connection in connections:
                connection.sendall(b" " * (60 << 20))
            refused, _, _ = select.select(connections, [], [], 3)
            answers = [statuses(connection.recv(1 << 16)) for connection in refused]
            assert answers == [[503]] * (number - 4)
            assert server.is_alive()
            for connection in connections:
                connection.close()


@pytest.mark.parametrize(
    "body, reason",
    [
        (b"[" * 3_000_000, "nested too deeply"),
        (b"[" * (60 << 20), "4000000 lists, objects and texts"),
        (b'{"instances": [' + b'"ab",' * 4_000_000 + b'"ab"]}', "4000000 lists, objects and texts"),
        (b'{"instances": ' + b'{"b64":' * 100_000, "nested too deeply"),
        (b'{"instances": [' + b"1" * 5_000 + b"]}", "JSON Parse error: Exceeds the limit"),
        (b'{"instances": ["\\ud800"]}', "must be the bytes of an image file"),
    ],
    ids=["deep", "lists", "texts", "deep_objects", "digits", "surrogate"],
)
def test_json_that_python_can_not_hold_is_a_bad_request(server, body, reason):
    """F18: 60 MB of `[` was a 500."""
    received = server.send(post(body, CLOSE))
    assert (
        statuses(received) == [400]
        and reason in json.loads(received.partition(b"\r\n\r\n")[2])["error"]
    )


def test_a_server_that_stops_gives_the_answers_that_are_under_way(caplog):
    with running() as server, server.connect() as connection:
        server.model.may_answer.clear()
        connection.sendall(post(BODY))
        assert server.model.asked.acquire(timeout=30)
        server.server.should_exit = True
        time.sleep(0.5)
        server.model.may_answer.set()
        assert read_to_end(connection).endswith(PREDICTED)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
