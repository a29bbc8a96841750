"""Checkpoints in the store: which one a host resumes from, and what is left of the others.

The store is a folder here. The tests with a bucket are in `launch/test_bucket.py`.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.storage.local_store import LocalPath
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.training.checkpoint_store import CheckpointId, CheckpointStore
from pipeline_ops.training.checkpoints import Checkpoints, Restored
from pipeline_ops.training.training_state import TrainingState


class Host:
    """A host with a disk of its own."""

    def __init__(
        self, folder: Path, store: StorePath, token: int, is_shared: bool = False, **options
    ):
        folder.mkdir(exist_ok=True)
        self.folder, self.warnings = folder, []
        self.checkpoints = Checkpoints(
            folder,
            store=CheckpointStore(store / "work", token, 2, is_shared),
            warn=self.warnings.append,
            **options,
        )

    def save(self, step: int, best_epoch: int = -1, best: float | None = None) -> None:
        self.checkpoints.save(
            TrainingState(step=step, learning_rate=0.1, best_epoch=best_epoch),
            [np.float32([step])],
            [],
            None if best is None else [np.float32([best])],
        )
        self.checkpoints.wait_until_stored()

    def restore(self) -> Restored | None:
        return self.checkpoints.restore(self.warnings.append)

    def roll_back(self) -> TrainingState:
        return self.checkpoints.roll_back(self.warnings.append, 60).state


@pytest.fixture
def store(tmp_path) -> StorePath:
    return open_root(tmp_path / "store")


@pytest.fixture
def make_host(tmp_path, store):
    return lambda name, token, **options: Host(tmp_path / name, store, token, **options)


def names(store: StorePath) -> list[str]:
    return [entry.name for entry in (store / "work").walk()]


def manifests(store: StorePath) -> list[str]:
    return [name for name in names(store) if name.endswith(".json")]


def test_another_host_resumes_from_the_newest_one_with_its_best_weights(make_host):
    first = make_host("first", 1)
    first.save(10, best_epoch=0, best=0.5)
    first.save(20, best_epoch=0)
    restored = make_host("other", 2).restore()
    assert restored.id == CheckpointId(1, 20)
    assert (restored.weights, restored.best) == ([np.float32([20])], [np.float32([0.5])])
    assert restored.digest == first.restore().digest
    assert first.warnings == []


@pytest.mark.parametrize(
    ("damage", "step", "warning"),
    [
        ("none", 20, None),
        ("no manifest", 10, None),
        ("damaged manifest", 10, "not a valid CheckpointManifest"),
        ("manifest of another step", 10, "FileNotFoundError"),
        ("file cut off", 10, "but its manifest lists"),
        ("file changed", 10, "but its manifest lists"),
        ("file missing", 10, "FileNotFoundError"),
    ],
)
def test_the_one_before_is_used_if_the_newest_is_not_whole(make_host, store, damage, step, warning):
    host = make_host("first", 1)
    host.save(10)
    host.save(20)
    work = store.local / "work"
    older, newest = (work / f"checkpoint-00000001-0000000{step}.json" for step in (10, 20))
    [checksums] = json.loads(newest.read_text())["files"].values()
    file = work / "00000001" / f"{checksums['sha256']}.npz"
    match damage:
        case "no manifest":
            newest.unlink()
        case "damaged manifest":
            newest.write_text("{")
        case "manifest of another step":
            shutil.copy(older, newest)
        case "file cut off":
            file.write_bytes(file.read_bytes()[:-1])
        case "file changed":
            file.write_bytes(file.read_bytes()[:-1] + b"x")
        case "file missing":
            file.unlink()
    other = make_host("other", 2)
    assert other.restore().state.step == step
    if warning is None:
        assert other.warnings == []
    else:
        [message] = other.warnings
        assert "checkpoint-00000001-000000020.npz is damaged" in message
        assert warning in message
    assert sorted(path.name for path in other.folder.glob("*")) == [
        ".download.lock",
        f"checkpoint-00000001-{step:09d}.npz",
    ]


def test_the_highest_token_decides_before_the_highest_step(make_host, store):
    """The launcher of the token 1 was paused, and uploads more after another one has taken over."""
    paused = make_host("first", 1)
    paused.save(10)
    successor = make_host("second", 2)
    assert successor.restore().id == CheckpointId(1, 10)
    successor.save(20)
    for step in (30, 40, 50):
        paused.save(step)
    assert make_host("third", 3).restore().id == CheckpointId(2, 20)
    assert make_host("first", 3).restore().id == CheckpointId(2, 20), "its own disk has step 50"
    assert manifests(store)[-1] == "checkpoint-00000002-000000020.json", "it was not removed"


def test_a_checkpoint_above_the_lease_of_the_job_is_an_error_that_names_it(make_host, store):
    """M1: whoever may write to the bucket gave a checkpoint the highest token, and it counted."""
    make_host("first", 1).save(10)
    work = store / "work"
    forged = work / "checkpoint-00000099-000000010.json"
    forged.write((work / "checkpoint-00000001-000000010.json").read())
    with pytest.raises(DataError, match=f"{forged} has a token above .* lease, 2. .* remove"):
        make_host("second", 2).restore()


def test_only_the_newest_are_kept_and_nothing_else_is_left(make_host, store):
    first = make_host("first", 1)
    for step, epoch in ((10, 0), (20, 1), (30, 2)):
        first.save(step, best_epoch=epoch, best=float(epoch))
    assert manifests(store) == [f"checkpoint-00000001-0000000{step}.json" for step in (20, 30)]
    assert len(names(store)) == 2 + 4, "each with its best weights"
    second = make_host("second", 2)
    second.restore()
    second.save(40, best_epoch=2)
    second.save(50, best_epoch=2)
    assert manifests(store) == [f"checkpoint-00000002-0000000{step}.json" for step in (40, 50)]
    assert len(names(store)) == 2 + 3, "both have the same best weights"
    assert not [name for name in names(store) if name.startswith("00000001/")]


def test_what_a_killed_upload_has_left_is_removed_with_the_next_one(make_host, store):
    (store / "work" / "00000001" / f"{'a' * 64}.npz").write(b"half")
    make_host("first", 2).save(10)
    assert len(names(store)) == 2


def test_after_a_rollback_the_later_steps_are_gone(make_host, store):
    first = make_host("first", 1)
    first.save(10)
    first.save(20)
    make_host("second", 2).save(15)
    assert manifests(store) == [
        "checkpoint-00000001-000000010.json",
        "checkpoint-00000002-000000015.json",
    ]


def test_a_host_that_has_the_file_does_not_fetch_it_again_and_repairs_a_damaged_one(make_host):
    host = make_host("first", 1)
    host.save(10)
    file = host.folder / "checkpoint-00000001-000000010.npz"
    before = file.stat().st_ino
    assert host.restore().state.step == 10
    assert file.stat().st_ino == before
    file.write_bytes(file.read_bytes()[:100])
    assert host.restore().state.step == 10
    assert host.warnings == []


def test_a_checkpoint_that_was_not_stored_yet_counts_on_its_own_host_only(make_host, monkeypatch):
    first = make_host("first", 1)
    first.save(10)
    monkeypatch.setattr(CheckpointStore, "upload", lambda *_: None)
    first.save(20)
    assert first.restore().state.step == 20
    assert make_host("second", 1).restore().state.step == 10
    assert make_host("first", 1, is_shared=True).restore().state.step == 10, (
        "the workers on other hosts could not read it"
    )


@dataclasses.dataclass(frozen=True)
class SlowPath(LocalPath):
    """A place in a store that holds uploads until it is opened."""

    is_open: threading.Event = dataclasses.field(default_factory=threading.Event)
    uploads: list[str] = dataclasses.field(default_factory=list)

    def upload(self, file: Path) -> None:
        self.uploads.append(self.key)
        assert self.is_open.wait(60)
        super().upload(file)


def test_training_does_not_wait_for_an_upload_and_the_newest_is_next(tmp_path):
    slow = SlowPath(tmp_path / "store")
    host = Host(tmp_path / "first", slow, 1)
    for step in range(10, 100, 10):
        host.checkpoints.save(TrainingState(step=step, learning_rate=0.1), [np.ones(step)], [])
    host.checkpoints.wait()
    assert len(slow.uploads) == 1, "the first one is still on its way"
    slow.is_open.set()
    host.checkpoints.wait_until_stored()
    assert [each[-14:-5] for each in manifests(slow)] == ["000000010", "000000090"]
    assert Host(tmp_path / "other", slow, 2).restore().weights[0].shape == (90,)
    assert list(host.folder.glob(".upload-*")) == []


@dataclasses.dataclass(frozen=True)
class RefusingPath(LocalPath):
    """A place in a store that is out of reach for uploads after the first ones."""

    error: Exception = MachineError("the store is away")
    num_accepted: int = 0
    uploads: list[str] = dataclasses.field(default_factory=list)

    def upload(self, file: Path) -> None:
        self.uploads.append(self.key)
        if len(self.uploads) > self.num_accepted:
            raise self.error
        super().upload(file)


@pytest.mark.parametrize("kind", [MachineError, OSError, ValueError])
def test_a_failed_upload_is_a_warning_and_the_training_goes_on(tmp_path, kind):
    refusing = RefusingPath(tmp_path / "store", error=kind("the store is away"))
    host = Host(tmp_path / "first", refusing, 1)
    host.save(10)
    host.save(20)
    assert host.warnings == [
        f"the checkpoint of step {step} was not stored: the store is away" for step in (10, 20)
    ]
    assert host.restore().state.step == 20
    assert list(host.folder.glob(".upload-*")) == []


def test_on_a_disk_without_hard_links_checkpoints_are_stored_too(make_host, monkeypatch):
    def refuse(*_) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    host = make_host("first", 1)
    host.save(10)
    assert make_host("other", 2).restore().state.step == 10
    assert host.warnings == []


def test_files_that_cannot_be_linked_are_a_warning_and_the_next_one_is_stored(
    make_host, monkeypatch
):
    host = make_host("first", 1)
    host.save(10)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
        host.save(20)
    assert not host.checkpoints.wait_until_stored()
    host.save(30)
    [warning] = host.warnings
    assert warning.startswith("the checkpoint of step 20 was not stored: ")
    assert make_host("other", 2).restore().state.step == 30
    assert list(host.folder.glob(".upload-*")) == []


def test_the_links_of_a_killed_upload_are_removed(make_host):
    host = make_host("first", 1)
    (host.folder / ".upload-abc").mkdir()
    (host.folder / ".upload-abc" / "checkpoint-00000001-000000010.npz").write_text("a leftover")
    make_host("first", 1)
    assert list(host.folder.iterdir()) == []


def make_state(learning_rate: float) -> TrainingState:
    return TrainingState(step=10, learning_rate=learning_rate)


def test_after_a_rollback_all_hosts_have_the_last_save_of_a_step_that_was_stored_before(tmp_path):
    """The second save has the decision after a divergence. Its upload ends late."""
    slow, barrier, rows = SlowPath(tmp_path / "store"), threading.Barrier(2, timeout=60), [b""] * 2

    def make_worker(worker: int) -> Host:
        def gather(message: bytes) -> list[bytes]:
            if worker == 1:
                slow.is_open.set()  # it has restored the earlier copy by now, or it never will
            rows[worker] = message
            barrier.wait()
            found = list(rows)
            barrier.wait()
            return found

        options = {"is_shared": True, "gather": gather, "is_chief": worker == 0}
        return Host(tmp_path / f"host-{worker}", slow, 1, **options)

    hosts = [make_worker(0), make_worker(1)]
    slow.is_open.set()
    for learning_rate in (0.1, 0.05):
        for host in hosts:
            host.checkpoints.save(make_state(learning_rate), [np.float32([1])], [])
        if learning_rate == 0.1:
            hosts[0].checkpoints.wait_until_stored()
            slow.is_open.clear()
    with ThreadPoolExecutor(2) as pool:
        states = list(pool.map(Host.roll_back, hosts))
    assert [state.learning_rate for state in states] == [0.05, 0.05]


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_rollback_never_takes_an_earlier_copy_of_a_save_that_was_not_stored(tmp_path, is_shared):
    store = RefusingPath(tmp_path / "store", num_accepted=1)
    host = Host(tmp_path / "first", store, 1, is_shared=is_shared)
    for learning_rate in (0.1, 0.05):
        host.checkpoints.save(make_state(learning_rate), [np.float32([1])], [])
        host.checkpoints.wait_until_stored()
    if is_shared:
        with pytest.raises(MachineError, match=r"was not stored.* warnings say why"):
            host.roll_back()
    else:
        assert host.roll_back().learning_rate == 0.05, "the file on the one disk"


def test_a_checkpoint_that_is_replaced_while_it_is_fetched_is_not_called_damaged(
    make_host, monkeypatch
):
    """The gang of a paused launcher still trains, and removes its older checkpoints."""
    first = make_host("first", 1)
    first.save(10)
    first.save(20)
    download = CheckpointStore.download

    def download_late(self, checkpoint, target):
        if checkpoint.step == 20:
            first.save(30)
            first.save(40)
        download(self, checkpoint, target)

    monkeypatch.setattr(CheckpointStore, "download", download_late)
    other = make_host("other", 2)
    assert (other.restore().state.step, other.warnings) == (40, [])
