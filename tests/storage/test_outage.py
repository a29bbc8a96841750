"""Outages of a store: what waits for it, for how long, and what is said."""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from object_servers.fault_proxy import FaultProxy
from object_servers.fixtures import set_environment

from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_options import wait_at_most
from pipeline_ops.storage.store_path import StoreAway
from pipeline_ops.system import lease as lease_module
from pipeline_ops.system.lease import hold_lease
from pipeline_ops.system.locks import ResourceHeld

MEGABYTE = 1 << 20


@pytest.fixture
def proxied(make_root, monkeypatch):
    """A proxy, and a root on the S3 server behind it."""
    root = make_root("s3")
    with FaultProxy(root.server.address) as proxy:
        set_environment(monkeypatch, root.server.build_environment(proxy.address))
        yield proxy, open_root(root.uri)


def list_warnings(caplog, logger: str) -> list[str]:
    found = [record for record in caplog.records if record.levelno == logging.WARNING]
    return [record.getMessage() for record in found if record.name.startswith(logger)]


@pytest.mark.stores
def test_every_request_outlasts_an_outage_of_which_one_line_speaks(proxied, tmp_path, caplog):
    """N6."""
    proxy, root = proxied
    content = os.urandom(24 * MEGABYTE)
    (tmp_path / "large").write_bytes(content)
    (root / "large").upload(tmp_path / "large")
    for name in ("file", "folder/a", "folder/b", "old/a", "old/b"):
        (root / name).write(b"x")
    requests = [
        lambda: (root / "file").read(),
        lambda: (root / "file").stat(),
        lambda: (root / "folder").walk(),
        lambda: (root / "folder").list_folder(),
        lambda: (root / "new").create(b"new"),
        lambda: (root / "file2").write(b"new"),
        lambda: (root / "old").remove_tree(),
    ]
    with ThreadPoolExecutor(10) as pool:
        with proxy.failing(bytes_per_second=8 * MEGABYTE):
            calls = [
                pool.submit((root / "large").download, tmp_path / "copy", len(content)),
                pool.submit((root / "large2").upload, tmp_path / "large"),
            ]
            time.sleep(1)
        with proxy.failing(refused=True):
            calls += [pool.submit(request) for request in requests]
            time.sleep(8)
            assert not any(call.done() for call in calls)
        for call in calls:
            call.result()
    assert (tmp_path / "copy").read_bytes() == (root / "large2").read(len(content)) == content
    assert (root / "new").read() == (root / "file2").read() == b"new"
    assert (root / "old").walk() == []
    begin, end, *again = list_warnings(caplog, "pipeline_ops.storage")
    assert len(again) in (0, 2)  # a request that failed just before another one's success
    assert f"{root}" in begin and proxy.address in begin
    assert "the connection was refused" in begin and "at most 180 s" in begin
    assert "there again after" in end


@pytest.mark.parametrize("fault", ["lost_answer_one_in", "dropped_one_in"])
def test_a_create_whose_answer_is_lost_in_an_outage_is_known_by_its_content(proxied, fault):
    """N6: the client gives up after ten more tries."""
    proxy, root = proxied
    with proxy.failing(**{fault: 1}, max_failures=14):
        (root / "mine").create(b"mine")
        with pytest.raises(FileExistsError):
            (root / "mine").create(b"of another")
    assert (root / "mine").read() == b"mine"


@pytest.mark.stores
def test_after_its_patience_a_request_fails_and_later_ones_fail_soon(proxied, caplog):
    """N6."""
    proxy, root = proxied
    with proxy.failing(refused=True), wait_at_most(1):
        for _ in range(3):
            with pytest.raises(StoreAway, match="refused.*Check that the store can be reached"):
                (root / "file").read()
    assert len(list_warnings(caplog, "pipeline_ops.storage")) <= 1


@pytest.mark.stores
def test_an_outage_ends_no_lease(proxied, monkeypatch):
    """N6."""
    proxy, root = proxied
    for name, seconds in (("LEASE_SECONDS", 8.0), ("_LOOK_SECONDS", 1.0), ("_BEAT_SECONDS", 0.5)):
        monkeypatch.setattr(lease_module, name, seconds)
    monkeypatch.setattr(lease_module, "get_pid_space", lambda: "another machine")

    def outlast() -> None:
        time.sleep(1)
        with proxy.failing(refused=True):
            time.sleep(12)

    with hold_lease(root / "lock", "the thing") as lease:
        thread = threading.Thread(target=outlast)
        thread.start()
        with pytest.raises(ResourceHeld), hold_lease(root / "lock", "the thing", wait_seconds=16):
            pass
        thread.join()
        lease.commit(root / "result", b"done")
    assert (root / "result").read() == b"done"
