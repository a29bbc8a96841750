"""Locks and leases that their holders remove together with what they protected."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.system.lease import hold_lease
from pipeline_ops.system.locks import ResourceHeld, exclusive_lock


def test_who_waits_for_a_lock_that_goes_gets_the_next_one(tmp_path):
    path, inside, overlaps = tmp_path / "lock", [], []

    def work(_: int) -> None:
        for _ in range(30):
            with exclusive_lock(path, "it", wait_seconds=60):
                inside.append(1)
                overlaps.append(len(inside))
                time.sleep(0.001)
                inside.pop()
                path.unlink()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert overlaps == [1] * 120


def test_a_discarded_lease_leaves_no_file(tmp_path):
    path = open_root(tmp_path) / "lock"
    with hold_lease(path, "it") as lease:
        with pytest.raises(ResourceHeld), hold_lease(path, "it"):
            pass
        lease.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_discarded_lease_leaves_no_object(s3_root):
    path = s3_root / "lock"
    with hold_lease(path, "it"):
        pass
    with hold_lease(path, "it") as lease:
        lease.discard()
    assert path.walk() == []
    with hold_lease(path, "it") as lease:
        assert lease.token == 1


def test_a_holder_whose_record_was_discarded_cannot_commit(s3_root):
    """A paused holder was taken over, its records were discarded, and the numbers begin again."""
    path, target = s3_root / "lock", s3_root / "manifest.json"
    with hold_lease(path, "it") as paused:
        path.remove_tree()
        with hold_lease(path, "it") as other:
            assert other.token == paused.token == 1
            with pytest.raises(MachineError, match="another one has taken over"):
                paused.commit(target, b"late")
    assert not target.exists()
