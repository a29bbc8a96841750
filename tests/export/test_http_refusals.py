"""Requests that the application refuses for their host or origin, and its headers."""

from __future__ import annotations

import pytest
from export.http_server import BODY, GET, post, running, statuses


@pytest.fixture(scope="module")
def server():
    with running(("models.example.org",)) as server:
        yield server


@pytest.mark.parametrize(
    "host, status",
    [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:8501", 200),
        ("192.0.2.7", 200),
        ("models.example.org:80", 200),
        ("attacker.example:8501", 421),
        ("localhost.attacker.example", 421),
        ("[", 421),
        ("a@127.0.0.1", 200),
    ],
)
def test_a_foreign_name_is_refused_so_that_no_page_can_read_answers_by_rebinding_its_name(
    server, host, status
):
    received = server.send(
        GET.replace(b"localhost", host.encode()).replace(
            b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"
        )
    )
    assert statuses(received) == [status]


@pytest.mark.parametrize(
    "origin, status",
    [
        ("http://localhost", 200),
        ("https://models.example.org", 200),
        ("http://attacker.example", 403),
        ("null", 403),
        ("http://localhost:3000", 403),
        ("http://attacker.example/localhost", 403),
    ],
)
def test_a_page_of_another_site_can_not_ask_for_predictions(server, origin, status):
    received = server.send(post(BODY, b"Connection: close\r\nOrigin: " + origin.encode() + b"\r\n"))
    assert statuses(received) == [status] and b"access-control-allow" not in received.lower()


def test_answers_forbid_what_the_page_does_not_need(server):
    page = server.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").lower()
    for header in (
        b"content-security-policy: default-src 'none'",
        b"frame-ancestors 'none'",
        b"x-content-type-options: nosniff",
        b"referrer-policy: no-referrer",
        b"cross-origin-resource-policy: same-origin",
    ):
        assert header in page
    assert b"\r\nserver:" not in page
