"""The servers on which the tests of the store are built, and each fault of the proxy."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import pytest
from object_servers.fault_proxy import FaultProxy, Traffic
from object_servers.faults import Faults, Judge
from object_servers.fixtures import StoreRoot, set_environment
from object_servers.remote_proxy import RemoteFaultProxy
from obstore.exceptions import (
    AlreadyExistsError,
    GenericError,
    PermissionDeniedError,
    PreconditionError,
)
from obstore.store import ObjectStore, from_url
from processes import wait_until

MEGABYTE = 1 << 20
RETRIES = {
    "max_retries": 3,
    "backoff": {
        "init_backoff": timedelta(milliseconds=10),
        "max_backoff": timedelta(milliseconds=50),
        "base": 2,
    },
}
NO_RETRY = {"max_retries": 0}
SUPPORT = Path(__file__).parents[1] / "support"


def open_store(root: StoreRoot, retries: dict = RETRIES) -> ObjectStore:
    return from_url(root.uri, retry_config=retries)


def list_names(store: ObjectStore, prefix: str | None = None) -> list[str]:
    return [found["path"] for page in store.list(prefix) for found in page]


def read(store: ObjectStore, name: str) -> bytes:
    return bytes(store.get(name).bytes())


# The servers


def test_a_second_create_is_refused(bucket_root):
    store = open_store(bucket_root)
    store.put("a b/ü+%.txt", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        store.put("a b/ü+%.txt", b"second", mode="create")
    assert read(store, "a b/ü+%.txt") == b"first"
    assert list_names(store) == ["a b/ü+%.txt"]


def test_of_many_creators_at_once_one_wins(bucket_root):
    store = open_store(bucket_root)

    def create(name: str, content: bytes) -> bytes | None:
        try:
            store.put(name, content, mode="create")
        except AlreadyExistsError:
            return None
        return content

    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            tried = [pool.submit(create, f"{number}", b"%d" % index) for index in range(8)]
            assert [r for t in tried if (r := t.result())] == [read(store, f"{number}")]


def test_a_replacement_names_the_version_that_it_replaces(bucket_root):
    store = open_store(bucket_root)
    first = {k: v for k, v in store.put("object", b"1").items() if v is not None}
    store.put("object", b"2", mode=first)
    with pytest.raises(PreconditionError):
        store.put("object", b"3", mode=first)
    assert read(store, "object") == b"2"


@pytest.mark.stores
def test_a_listing_has_several_pages(bucket_root):
    store = open_store(bucket_root)
    names = [f"many/{number:04d}" for number in range(1100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put(name, b"x"), names))
    store.put("other/object", b"")
    assert sorted(list_names(store, "many")) == names
    assert store.list_with_delimiter()["common_prefixes"] == ["many", "other"]
    store.delete(names)
    assert list_names(store) == ["other/object"]


def test_a_range_gives_what_there_is(bucket_root):
    store = open_store(bucket_root)
    store.put("object", b"0123456789")
    assert bytes(store.get_range("object", start=2, end=5)) == b"234"
    assert bytes(store.get_range("object", start=8, end=100)) == b"89"
    with pytest.raises(GenericError, match="416|object was only 10 bytes long"):
        store.get_range("object", start=10, end=20)


@pytest.mark.parametrize("size", [0, 20 * MEGABYTE])
def test_an_object_comes_back_as_it_was(bucket_root, size):
    store, content = open_store(bucket_root), os.urandom(size)
    store.put("object", content)
    assert store.head("object")["size"] == size
    assert read(store, "object") == content


def test_an_upload_in_parts_replaces_the_whole(bucket_root):
    store = open_store(bucket_root)
    for content in (os.urandom(12 * MEGABYTE), os.urandom(7 * MEGABYTE)):
        store.put("object", content, chunk_size=5 * MEGABYTE)
        assert read(store, "object") == content


def test_what_is_removed_is_missing(bucket_root):
    store = open_store(bucket_root)
    store.put("object", b"x")
    store.delete("object")
    assert list_names(store) == []
    for question in (store.get, store.head):
        with pytest.raises(FileNotFoundError):
            question("object")


def test_a_bucket_that_was_not_made_is_missing(bucket_root):
    store = from_url(f"{bucket_root.uri.partition('://')[0]}://absent/x", retry_config=NO_RETRY)
    with pytest.raises(FileNotFoundError, match="NoSuchBucket|ContainerNotFound"):
        store.put("object", b"x")


def test_a_server_ends_with_the_process_that_started_it(bucket_root, tmp_path):
    kind = type(bucket_root.server)
    arguments = f"Path({str(tmp_path)!r})" if kind.__name__ == "GcsServer" else ""
    code = (
        f"import time; from pathlib import Path; from {kind.__module__} import {kind.__name__}\n"
        f"with {kind.__name__}({arguments}) as server:\n"
        "    print(server.address, flush=True); time.sleep(600)"
    )
    path = os.pathsep.join([str(SUPPORT), str(SUPPORT.parents[1])])
    starter = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        address = starter.stdout.readline().strip()
        was_there = accepts_connections(address)
        starter.kill()
    assert was_there
    wait_until(lambda: not accepts_connections(address))


def accepts_connections(address: str) -> bool:
    port = int(address.rpartition(":")[2])
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


# The proxy


@pytest.fixture
def proxied(bucket_root, monkeypatch):
    """A root of each kind, behind a proxy."""
    with FaultProxy(bucket_root.server.address) as proxy:
        yield put_behind(proxy, bucket_root, monkeypatch)


@pytest.fixture
def proxied_s3(make_root, monkeypatch):
    """A root on the S3 server, behind a proxy."""
    root = make_root("s3")
    with FaultProxy(root.server.address) as proxy:
        yield put_behind(proxy, root, monkeypatch)


def put_behind(proxy: FaultProxy | RemoteFaultProxy, root: StoreRoot, monkeypatch):
    """The proxy, a store that reaches the server through it, and one that reaches it directly."""
    direct = open_store(root)
    set_environment(monkeypatch, root.server.build_environment(proxy.address))
    return proxy, open_store(root), direct


def test_a_proxy_without_faults_changes_nothing(proxied):
    proxy, store, direct = proxied
    content = os.urandom(20 * MEGABYTE)
    store.put("a b/ü+%.txt", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        store.put("a b/ü+%.txt", b"second", mode="create")
    store.put("large", content)
    assert read(store, "large") == read(direct, "large") == content
    assert list_names(store) == list_names(direct) == ["a b/ü+%.txt", "large"]
    store.delete("large")
    assert list_names(direct) == ["a b/ü+%.txt"]


def test_many_connections_at_once_keep_their_contents(proxied_s3):
    proxy, store, _ = proxied_s3
    contents = [os.urandom(8 * MEGABYTE) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: store.put(f"{i}", contents[i]), range(8)))
        assert list(pool.map(lambda i: read(store, f"{i}"), range(8))) == contents


ERRORS: list[tuple[dict, str, type[Exception], str]] = [
    ({"denied": "writes"}, "put", PermissionDeniedError, "403"),
    ({"denied": "writes"}, "create", PermissionDeniedError, "403"),
    ({"denied": "all"}, "get", PermissionDeniedError, "403"),
    ({"denied": "all"}, "list", GenericError, "403"),
    ({"vanished": True}, "put", FileNotFoundError, "NoSuchBucket|ContainerNotFound"),
    ({"vanished": True}, "get", FileNotFoundError, "NoSuchBucket|ContainerNotFound"),
    ({"vanished": True}, "list", GenericError, "NoSuchBucket|ContainerNotFound"),
    ({"full": True}, "put", GenericError, "after 3 retries.*507.*QuotaExceeded"),
    ({"full": True}, "upload", GenericError, "after 3 retries.*507.*QuotaExceeded"),
    ({"unavailable_one_in": 1}, "create", GenericError, "after 3 retries.*503"),
    ({"unavailable_one_in": 1}, "get", GenericError, "after 3 retries.*503"),
    ({"refused": True}, "create", GenericError, "after 3 retries.*error sending request"),
    ({"refused": True}, "get", GenericError, "after 3 retries.*error sending request"),
]
OPERATIONS: dict[str, Callable[[ObjectStore], object]] = {
    "put": lambda store: store.put("object", b"new"),
    "create": lambda store: store.put("new", b"new", mode="create"),
    "upload": lambda store: store.put("object", bytes(6 * MEGABYTE)),
    "get": lambda store: store.get("object"),
    "list": list_names,
}


@pytest.mark.parametrize(("faults", "operation", "error", "text"), ERRORS)
def test_a_request_that_is_not_carried_out_changes_nothing(proxied, faults, operation, error, text):
    proxy, store, direct = proxied
    store.put("object", b"old")
    with proxy.failing(**faults), pytest.raises(error, match=f"(?s){text}"):
        OPERATIONS[operation](store)
    assert list_names(direct) == ["object"]
    assert read(store, "object") == b"old"


def test_a_full_store_removes_and_a_read_only_one_reads(proxied):
    proxy, store, _ = proxied
    store.put("object", b"old")
    with proxy.failing(denied="writes"):
        assert read(store, "object") == b"old"
    with proxy.failing(full=True):
        store.delete("object")
        assert list_names(store) == []


@pytest.mark.parametrize("fault", ["lost_answer_one_in", "dropped_one_in"])
def test_a_create_whose_answer_is_lost_has_happened(proxied, fault):
    proxy, store, direct = proxied
    with proxy.failing(**{fault: 1}, max_failures=1), pytest.raises(AlreadyExistsError):
        store.put("object", b"x", mode="create")
    assert read(direct, "object") == b"x"


def test_a_request_that_is_sent_again_goes_well(proxied):
    proxy, store, _ = proxied
    with proxy.failing(unavailable_one_in=1, max_failures=2):
        proxy.reset_traffic()
        store.put("object", b"x", mode="create")
    assert proxy.num_requests == 3


def test_a_server_without_conditions_creates_twice(make_root, monkeypatch):
    for kind in ("s3", "gs"):
        root = make_root(kind)
        with FaultProxy(root.server.address, Faults(ignore_conditions=True)) as proxy:
            _, store, direct = put_behind(proxy, root, monkeypatch)
            for content in (b"first", b"second"):
                store.put("object", content, mode="create")
            assert read(direct, "object") == b"second"


def test_a_pattern_limits_the_faults(proxied_s3):
    proxy, store, _ = proxied_s3
    with proxy.failing(denied="all", only=r"^PUT .*/secret"):
        store.put("open", b"x")
        assert read(store, "open") == b"x"
        with pytest.raises(PermissionDeniedError):
            store.put("secret", b"x")


def test_every_request_waits(proxied_s3):
    proxy, store, _ = proxied_s3
    store.put("object", b"x")
    with proxy.failing(latency_seconds=0.2):
        start = time.monotonic()
        for _ in range(3):
            store.head("object")
        assert time.monotonic() - start >= 0.6


@pytest.mark.parametrize("direction", ["uploads", "downloads"])
def test_all_connections_share_the_bandwidth(proxied_s3, direction):
    proxy, store, _ = proxied_s3
    content = bytes(MEGABYTE)
    for number in range(4):
        store.put(f"{number}", content)

    def move(number: int) -> None:
        if direction == "uploads":
            store.put(f"{number}", content)
        else:
            read(store, f"{number}")

    with proxy.failing(bytes_per_second=4 * MEGABYTE), ThreadPoolExecutor(4) as pool:
        start = time.monotonic()
        list(pool.map(move, range(4)))
        assert 0.99 <= time.monotonic() - start < 10


def test_a_refusing_server_comes_back_at_the_same_port(proxied_s3):
    proxy, store, _ = proxied_s3
    store.put("object", b"x")
    with proxy.failing(refused=True):
        assert not accepts_connections(proxy.address)
    assert read(store, "object") == b"x"


def test_requests_and_bytes_are_counted(proxied_s3):
    proxy, store, _ = proxied_s3
    store.put("object", b"12345")
    for _ in range(2):
        read(store, "object")
    assert proxy.traffic == {"PUT": Traffic(1, 5, 0), "GET": Traffic(2, 0, 10)}
    proxy.reset_traffic()
    assert proxy.traffic == {}


def test_the_seed_decides_which_requests_fail():
    def draw(seed: int) -> list[bool]:
        judge = Judge(Faults(unavailable_one_in=20, seed=seed))
        return [judge.decide("GET", "/").answer is not None for _ in range(2000)]

    assert draw(1) == draw(1) != draw(2)
    assert 60 < sum(draw(1)) < 140


def test_a_proxy_runs_in_a_process_of_its_own(make_root, monkeypatch):
    root = make_root("s3")
    with RemoteFaultProxy(root.server.address) as proxy:
        _, store, direct = put_behind(proxy, root, monkeypatch)
        proxy.faults = faults = Faults(denied="writes", only="/secret")
        assert asdict(proxy.faults) == asdict(faults)
        with pytest.raises(PermissionDeniedError):
            store.put("secret", b"x")
        store.put("object", b"x")
        assert proxy.traffic == {"PUT": Traffic(2, 2, 0)}
        assert list_names(direct) == ["object"]
