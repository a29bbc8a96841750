"""The limits of the server, over raw sockets: the answers of h11, uvicorn and the application."""

from __future__ import annotations

import json
import logging
import time

import pytest
from export.http_server import BODY, GET, post, post_as, read_to_end, running, statuses

PREDICTED = b'{"predictions": [{"classes": 0, "probabilities": [1.0, 1.0]}]}'


@pytest.fixture(scope="module")
def server():
    with running(("models.example.org",), head_seconds=1, body_seconds=1, idle_seconds=1) as server:
        yield server


@pytest.fixture(scope="module")
def patient():
    """With the times of `Limits`, for bodies of 60 MB on a busy machine."""
    with running() as server:
        yield server


AMBIGUOUS = {
    "a_get_with_a_body": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(GET) + GET,
        "GET must not have a body",
    ),
    "a_get_with_chunks": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET must not have a body",
    ),
    "length_and_chunks": (
        post(b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\n"),
        "both Content-Length and Transfer-Enc",
    ),
    "chunks_and_length": (
        post_as(b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n"),
        "both Content-Len",
    ),
    "two_lengths": (post(BODY, b"Content-Length: 4\r\n"), "conflicting Content-Length"),
    "the_same_length_twice": (
        post(BODY, b"Content-Length: %d\r\n" % len(BODY)),
        "given more than once",
    ),
    "a_list_of_lengths": (post_as(b"Content-Length: 20, 20\r\n", BODY), "given more than once"),
    "a_length_of_4301_digits": (
        post_as(b"Content-Length: " + b"1" * 4301 + b"\r\n", BODY),
        "bad Content-Length",
    ),
    "a_length_below_zero": (post_as(b"Content-Length: -1\r\n", BODY), "bad Content-Length"),
    "a_length_with_a_sign": (post_as(b"Content-Length: +20\r\n", BODY), "bad Content-Length"),
    "chunks_in_http_1_0": (
        post_as(b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"),
        "HTTP/1.0 has no Transfer-Encoding",
    ),
    "a_bad_chunk": (post_as(b"Transfer-Encoding: chunked\r\n", b"zz\r\n"), "illegal chunk header"),
    "no_host": (b"GET /health HTTP/1.1\r\n\r\n", "Missing mandatory Host"),
    "two_hosts": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        "multiple Host",
    ),
    "a_folded_request_line": (
        b"GET\r\n /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "illegal request line",
    ),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_a_request_whose_end_is_unclear_gets_400_and_no_byte_after_it_is_a_request(server, name):
    """F18. What follows in the pipe is a whole request, which gets no answer."""
    request, reason = AMBIGUOUS[name]
    received = server.send(request + GET)
    assert (
        statuses(received) == [400]
        and reason in json.loads(received.partition(b"\r\n\r\n")[2])["error"]
    )
    assert b"\r\nConnection: close\r\n" in received
    assert server.is_alive()


def test_requests_in_a_pipe_get_their_answers_in_order(server):
    chunked = post_as(
        b"Transfer-Encoding: chunked\r\n", b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n"
    )
    received = server.send(
        GET
        + post(BODY)
        + chunked
        + GET
        + post(b"{")
        + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    )
    assert statuses(received) == [200, 200, 200, 200, 400, 200] and received.count(PREDICTED) == 2


def test_an_answer_does_not_wait_for_the_receipt_of_its_head(patient):
    """Of twenty answers on one connection the fastest shows it:
    TCP would delay each of them by 40 ms."""
    times = []
    with patient.connect() as connection:
        for _ in range(20):
            begin = time.perf_counter()
            connection.sendall(GET)
            received = b""
            while not received.endswith(b"}"):
                received += connection.recv(1 << 16)
            times.append(time.perf_counter() - begin)
    assert min(times[5:]) < 0.03


def test_a_client_that_closes_its_side_still_gets_the_answer(server):
    with server.connect() as connection:
        connection.sendall(post(BODY))
        connection.shutdown(1)
        assert read_to_end(connection).endswith(PREDICTED)


@pytest.mark.parametrize(
    "sent, expected",
    [
        (b"", [408]),
        (b"GET /health HT", [408]),
        (GET + b"GET /hea", [200]),
        (post(BODY, length=len(BODY) + 1), [408]),
    ],
    ids=["nothing", "half_a_head", "half_a_second_head", "half_a_body"],
)
def test_a_slow_request_is_given_up(server, sent, expected):
    """F18: no client holds a connection by sending slowly.
    The limits of this server are a second each."""
    begin = time.monotonic()
    assert statuses(server.send(sent)) == expected and 0.5 < time.monotonic() - begin < 20


def test_bytes_that_come_one_by_one_do_not_buy_time(server):
    begin = time.monotonic()
    with server.connect() as connection:
        try:
            while time.monotonic() < begin + 20:
                connection.sendall(b"X")
                time.sleep(0.1)
        except ConnectionError:
            pass
    assert time.monotonic() - begin < 15


def test_a_client_that_does_not_read_is_given_up():
    """F18: the answers that it asks for fill the buffers, and the server closes the connection."""
    with running(send_timeout_seconds=1, max_connections=2) as server:
        with server.connect(receive_buffer=4096) as connection:
            connection.settimeout(1)
            page = b"GET /page.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
            begin = time.monotonic()
            with pytest.raises(ConnectionError):
                while time.monotonic() < begin + 60:
                    try:
                        connection.sendall(page * 100)
                    except TimeoutError:
                        continue
        assert server.is_alive()


def test_the_number_of_connections_has_a_limit():
    """F18. Open connections are served. One more gets the reason,
    and can come again after another one is closed."""
    with running(max_connections=3) as server:
        connections = [server.connect() for _ in range(3)]
        for connection in connections:  # they are known to the server once they have an answer
            connection.sendall(GET)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        received = server.send(b"")
        assert (
            statuses(received) == [503]
            and b"too many connections" in received
            and b"Retry-After" not in received
        )
        connections.pop().close()
        deadline = time.monotonic() + 30
        while not server.is_alive():
            assert time.monotonic() < deadline
        for connection in connections:
            connection.close()


def test_predictions_beyond_the_queue_get_503_and_the_others_their_answers():
    """F18: one runs, one waits, and a third is refused at once;
    reading a page is still possible."""
    with running(threads=1, max_waiting=1) as server:
        server.model.may_answer.clear()
        first, second = server.connect(), server.connect()
        first.sendall(post(BODY, b"Connection: close\r\n"))
        assert server.model.asked.acquire(timeout=30)
        second.sendall(post(BODY, b"Connection: close\r\n"))
        while statuses(server.send(post(BODY, b"Connection: close\r\n"))) == [200]:
            pass
        refused = server.send(post(BODY))
        assert (
            statuses(refused) == [503]
            and b"retry-after: 1" in refused
            and b"too many predictions" in refused
        )
        assert statuses(
            server.send(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        ) == [200]
        server.model.may_answer.set()
        assert [read_to_end(connection).endswith(PREDICTED) for connection in (first, second)] == [
            True,
            True,
        ]
        first.close()
        second.close()


def test_the_bodies_that_are_under_way_have_a_limit_together():
    with running(inflight_bytes=1000, threads=2) as server, server.connect() as first:
        first.sendall(post(b"x" * 900, length=901))
        deadline = time.monotonic() + 30
        while statuses(received := server.send(post(b"x" * 200, b"Connection: close\r\n"))) != [
            503
        ]:
            assert time.monotonic() < deadline
        assert b"too many bytes are under way" in received
        first.close()
        while not server.is_alive():
            assert time.monotonic() < deadline


@pytest.mark.parametrize(
    "request_, status",
    [
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"y" * 300_000, 431),
        (post_as(b"Content-Length: %d\r\n" % (1 << 40), b""), 413),
        (post_as(b"Transfer-Encoding: chunked\r\n", b"4000001\r\n" + b" " * 0x4000001), 413),
        (post_as(b"Transfer-Encoding: gzip\r\n", b""), 501),
        (b"PUT /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
        (
            b"GET /v1/models/digits/versions/"
            + b"1" * 4400
            + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            404,
        ),
    ],
    ids=["long_head", "long_line", "long_body", "long_chunk", "gzip", "put", "version"],
)
def test_what_is_too_long_or_not_served_gets_its_status(patient, request_, status):
    received = patient.send(request_)
    assert statuses(received)[:1] in ([status], []) and (
        received or status in (413, 431)
    )  # a reset can lose the answer
    assert patient.is_alive()


@pytest.mark.parametrize(
    "body, reason",
    [
        (b"[" * 3_000_000, "nested too deeply"),
        (b"[" * (60 << 20), "4000000 lists, objects and texts"),
        (b'{"instances": [' + b'"ab",' * 4_000_000 + b'"ab"]}', "4000000 lists, objects and texts"),
        (b'{"instances": ' + b'{"b64":' * 100_000, "nested too deeply"),
        (b'{"instances": [' + b"1" * 5_000 + b"]}", "JSON Parse error: Exceeds the limit"),
        (b'{"instances": ["\\ud800"]}', "surrogates not allowed"),
    ],
    ids=["deep", "lists", "texts", "deep_objects", "digits", "surrogate"],
)
def test_json_that_python_can_not_hold_is_a_bad_request(patient, body, reason):
    """F18: 60 MB of `[` was a 500."""
    received = patient.send(post(body, b"Connection: close\r\n"))
    assert (
        statuses(received) == [400]
        and reason in json.loads(received.partition(b"\r\n\r\n")[2])["error"]
    )


def test_a_server_that_stops_gives_the_answers_that_are_under_way(caplog):
    with running() as server, server.connect() as connection:
        server.model.may_answer.clear()
        connection.sendall(post(BODY))
        assert server.model.asked.acquire(timeout=30)
        server.server.stop()
        time.sleep(0.5)
        server.model.may_answer.set()
        assert read_to_end(connection).endswith(PREDICTED)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
