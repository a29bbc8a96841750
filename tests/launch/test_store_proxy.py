"""The way of a gang in a network namespace to its store."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch import in_namespace
from launch.running import Agent, find_by_text, make_agent_spec, wait_until
from object_servers.fault_proxy import FaultProxy
from object_servers.fixtures import set_environment

from pipeline_ops.launch.store_proxy import StoreProxy
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_options import (
    PROXY_VARIABLE,
    StoreOptions,
    find_store_hosts,
    wait_at_most,
)
from pipeline_ops.storage.store_path import StoreAway

SOCKETS = 4
"""Those of a proxy without clients: its pipe, the one that listens, and a pair of the loop's."""
REQUEST = b"CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n"
ACCEPTED = b"HTTP/1.1 200 Connection established\r\n\r\n"


@contextlib.contextmanager
def client_in_namespace(root: str, seconds: float = 0.0) -> Iterator[subprocess.Popen]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, in_namespace.__file__, root, str(seconds)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as client:
        yield client
        client.stdin.close()
        assert client.wait(60) == 0
    wait_until(lambda: not find_by_text(root), 10)


def test_a_store_of_each_kind_is_reached_from_a_namespace(bucket_root):
    with client_in_namespace(bucket_root.uri) as client:
        assert client.stdout.readline() == "1\n"


def test_a_store_with_a_certificate_is_reached_by_a_tunnel(make_root, tmp_path, monkeypatch):
    root = make_root("s3")
    with tls_front(root.server.address, tmp_path) as (address, ca_file):
        options = f'{{"{root.uri}": {{"endpoint": "{address}", "ca_file": "{ca_file}"}}}}'
        monkeypatch.setenv("TRAINYARD_STORES", options)
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        with client_in_namespace(root.uri) as client:
            assert client.stdout.readline() == "1\n"


@contextlib.contextmanager
def tls_front(address: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """A server with a certificate before one without. Yields its URL and the authority's file."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=front", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    host, port = address.removeprefix("http://").split(":")

    def carry(client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            context.wrap_socket(client, server_side=True) as inside,
            socket.create_connection((host, int(port))) as outside,
        ):
            while True:
                for source in select.select([inside, outside], [], [])[0]:
                    data = source.recv(1 << 16)
                    while source is inside and inside.pending():
                        data += inside.recv(1 << 16)
                    if not data:
                        return
                    (outside if source is inside else inside).sendall(data)

    with serving(carry) as listening:
        yield f"https://{listening}", certificate


@contextlib.contextmanager
def serving(carry) -> Iterator[str]:
    """A server whose connections are carried in threads of their own. Yields its address."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:

        def accept() -> None:
            with contextlib.suppress(OSError):  # closed
                while True:
                    client, _ = listening.accept()
                    threading.Thread(target=carry, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.stores
def test_a_store_that_is_away_for_20_seconds_is_waited_for(make_root, monkeypatch):
    root = make_root("s3")
    with FaultProxy(root.server.address) as faults:
        monkeypatch.setenv("AWS_ENDPOINT_URL", faults.address)
        with client_in_namespace(root.uri, seconds=30.0) as client:
            wait_until(lambda: faults.num_requests > 5)
            with faults.failing(refused=True):
                threading.Event().wait(20)
            assert int(client.stdout.readline()) > 2


@pytest.fixture
def proxy():
    """Opens proxies in the namespace of this process. All are ended."""
    with contextlib.ExitStack() as opened:

        def open_proxy(*hosts: str) -> tuple[StoreProxy, tuple[str, int]]:
            made = StoreProxy("run of the test")
            opened.callback(lambda: made._process.wait(10))
            opened.callback(made._pipe.close)
            return made, ("127.0.0.1", int(made.open(hosts).rpartition(":")[2]))

        yield open_proxy


def echo_all(client: socket.socket) -> None:
    """Answers when the client has sent everything, and not before."""
    with client:
        received = b"".join(iter(lambda: client.recv(1 << 16), b""))
        client.sendall(received)


def read_all(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(1 << 16), b""))


def connect(address: tuple[str, int], target: str) -> socket.socket:
    client = socket.create_connection(address, 30)
    client.sendall(REQUEST % target.encode())
    return client


def test_half_closed_connections_give_their_answer_and_many_are_open_at_once(proxy):
    with serving(echo_all) as server:
        one, address = proxy(server)
        clients = [connect(address, server) for _ in range(300)]
        for number, client in enumerate(clients):
            with client:
                client.sendall(b"%d " % number * 50_000)
                client.shutdown(socket.SHUT_WR)
                assert read_all(client) == ACCEPTED + b"%d " % number * 50_000
        wait_until(lambda: count_sockets(one) == SOCKETS)


def count_sockets(proxy: StoreProxy) -> int:
    links = Path(f"/proc/{proxy._process.pid}/fd").iterdir()
    return sum(os.readlink(link).startswith("socket:") for link in links)


def test_a_connection_ends_with_a_client_that_is_killed(proxy):
    ended = threading.Event()

    def wait_for_end(server: socket.socket) -> None:
        with contextlib.suppress(ConnectionError):
            read_all(server)
        ended.set()

    with serving(wait_for_end) as server:
        _, address = proxy(server)
        code = (
            "import socket, sys, time\n"
            f"client = socket.create_connection({address})\n"
            f"client.sendall({REQUEST % server.encode()!r})\n"
            "print(client.recv(100), flush=True)\ntime.sleep(100)"
        )
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as client:
            assert b"established" in client.stdout.readline()
            client.kill()
        assert ended.wait(10)


@pytest.mark.parametrize(
    ("request_text", "answer"),
    [
        ("CONNECT {other} HTTP/1.1", "403 Forbidden"),
        ("GET http://{other}/a HTTP/1.1", "403 Forbidden"),
        ("CONNECT 127.0.0.1:1 HTTP/1.1", "502 Bad Gateway"),
        ("GET /a HTTP/1.1", ""),
        ("GET ftp://{other}/a HTTP/1.1", ""),
        ("x" * 600_000, ""),
        ("CONNECT 127.0.0.1:x HTTP/1.1", ""),
    ],
)
def test_nothing_but_the_store_is_reached(proxy, request_text, answer):
    with serving(lambda client: pytest.fail("reached")) as other:
        _, address = proxy("127.0.0.1:1", "store.example:443")
        with socket.create_connection(address, 30) as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(request_text.format(other=other).encode() + b"\r\n\r\n")
            received = b""
            with contextlib.suppress(ConnectionError):
                received = read_all(client)
        assert received.decode().startswith(f"HTTP/1.1 {answer}" if answer else "")
        assert bool(received) == bool(answer)


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ("http://127.0.0.1:1", "StoreProxy: 127.0.0.1:1: Connection refused"),
        ("https://127.0.0.1:1", "a proxy did not connect to it"),
    ],
)
def test_a_client_says_that_its_store_is_away(proxy, monkeypatch, capfd, endpoint, problem):
    _, (host, port) = proxy("127.0.0.1:1")
    set_environment(monkeypatch, {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"})
    monkeypatch.setenv(PROXY_VARIABLE, f"http://{host}:{port}")
    root = open_root("s3://bucket/x", StoreOptions(endpoint=endpoint))
    with wait_at_most(0), pytest.raises(StoreAway, match=f"s3://bucket/x: {problem} "):
        root.list_folder()
    said = capfd.readouterr().err
    assert said == "The store cannot be reached: 127.0.0.1:1: Connection refused.\n"


def test_a_proxy_of_the_environment_is_asked_as_other_programs_do(proxy, monkeypatch):
    heads = []

    def answer(client: socket.socket) -> None:
        with client:
            heads.append(client.recv(1 << 16).decode())
            client.sendall(ACCEPTED)

    with serving(answer) as outside:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:p%40ss@{outside}")
        monkeypatch.setenv("HTTP_PROXY", outside)
        monkeypatch.setenv("NO_PROXY", "near.example")
        _, address = proxy("store.example:443", "store.example:80", "near.example:443")
        with connect(address, "a.store.example:443") as client:
            assert read_all(client) == ACCEPTED
        with socket.create_connection(address, 30) as client:
            client.sendall(b"PUT http://store.example/a?b HTTP/1.1\r\nHost: store.example\r\n\r\n")
            assert read_all(client) == ACCEPTED
        with connect(address, "near.example:443") as client:
            assert read_all(client).startswith(b"HTTP/1.1 502")  # not by the proxy, and unknown
    login = "Proxy-Authorization: Basic dXNlcjpwQHNz"
    assert heads == [
        f"CONNECT a.store.example:443 HTTP/1.1\r\n{login}\r\nHost: x\r\n\r\n",
        "PUT http://store.example/a?b HTTP/1.1\r\nConnection: close\r\nHost: store.example\r\n\r\n",
    ]


@pytest.mark.parametrize("killed", ["agent", "proxy"])
def test_an_agent_and_its_proxy_end_together(tmp_path, killed):
    (tmp_path / "token").touch()
    spec = make_agent_spec(tmp_path, isolation="always", stored_attempt="s3://bucket/attempt")
    with Agent(spec) as agent:
        agent.hears("hello")
        own = agent.process.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        [pid] = [
            int(child)
            for child in children
            if "store_proxy" in Path(f"/proc/{child}/cmdline").read_text()
        ]
        assert os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
        os.kill(pid, signal.SIGTERM)  # that of a gang that is asked to end
        os.kill(own if killed == "agent" else pid, signal.SIGKILL)
        wait_until(lambda: not find_by_text(str(tmp_path)))
        if killed == "proxy":
            text = agent.process.stderr.read().decode()
            assert "the process by which the gang reaches the store has ended" in text


@pytest.mark.parametrize(
    ("root", "settings", "known", "unknown"),
    [
        (
            "s3://bucket/x",
            [],
            ["bucket.s3.eu-west-1.amazonaws.com:443", "sts.eu-west-1.amazonaws.com:443"],
            ["xamazonaws.com:443", "storage.googleapis.com:443", "s3.amazonaws.com:80"],
        ),
        (
            "s3://bucket/x",
            ["http://minio.lan:9000", "http://169.254.170.23/v1/credentials", "no URL"],
            ["minio.lan:9000", "bucket.minio.lan:9000", "169.254.170.23:80", "169.254.169.254:80"],
            ["minio.lan:80", "mini.lan:9000"],
        ),
        (
            "gs://bucket/x",
            ['{"token_uri": "https://user:secret@token.example/token"}'],
            ["storage.googleapis.com:443", "metadata.google.internal:80", "token.example:443"],
            ["login.microsoftonline.com:443", "user:443"],
        ),
        (
            "az://container/x",
            ["https://[fd00::1]:8443/account"],
            ["account.blob.core.windows.net:443", "login.microsoftonline.com:443", "fd00::1:8443"],
            ["s3.amazonaws.com:443"],
        ),
    ],
)
def test_the_hosts_of_a_store_are_those_of_its_cloud_and_of_its_settings(
    root, settings, known, unknown
):
    hosts = tuple(f".{host}" for host in find_store_hosts(root, settings))
    assert [name for name in known if not f".{name}".endswith(hosts)] == []
    assert [name for name in unknown if f".{name}".endswith(hosts)] == []
