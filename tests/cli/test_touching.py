"""The watch that other tests rely on reports each way of touching a file, and nothing else."""

from __future__ import annotations

import os
import shutil

import pytest
from cli.touching import TouchMonitor, compute_digests, read_states


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root" / "folder").mkdir(parents=True)
    (tmp_path / "root" / "folder" / "file").write_text("text")
    return tmp_path / "root"


@pytest.fixture
def monitor(root):
    monitor = TouchMonitor([root])
    yield monitor
    monitor.close()


def test_who_touches_nothing_is_not_reported(root, monitor):
    (root / "folder" / "file").stat()
    os.listdir(root.parent)
    assert monitor.touched() == []


@pytest.mark.parametrize(
    "touch, what",
    [
        (lambda file: file.read_text(), "opened"),
        (lambda file: file.read_text(), "read"),
        (lambda file: file.write_text("x"), "written"),
        (lambda file: file.chmod(0o600), "changed"),
        (lambda file: file.unlink(), "removed"),
        (lambda file: file.rename(file.with_name("b")), "moved away"),
        (lambda file: list(file.parent.iterdir()), "opened"),
    ],
)
def test_each_way_of_touching_is_reported(root, monitor, touch, what):
    touch(root / "folder" / "file")
    assert any(event.endswith(f"was {what}") for event in monitor.touched())
    assert monitor.touched() == []


def test_a_link_from_elsewhere_is_followed_to_the_file(root, monitor, tmp_path):
    (tmp_path / "link").symlink_to(root / "folder" / "file")
    (tmp_path / "link").read_text()
    assert monitor.touched() == [f"{root}/folder/file was opened", f"{root}/folder/file was read"]


def test_a_change_that_was_made_undone_is_a_change_all_the_same(root):
    before, digests = read_states([root]), compute_digests([root])
    file = root / "folder" / "file"
    stat = file.stat()
    file.write_text("next")
    file.write_text("text")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert compute_digests([root]) == digests
    assert read_states([root]) != before


def test_what_comes_is_seen_in_the_state(root):
    before = read_states([root])
    shutil.copy(root / "folder" / "file", root / "folder" / "copy")
    assert set(read_states([root])) - set(before) == {f"{root}/folder/copy"}
