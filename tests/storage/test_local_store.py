"""A store in a folder follows no link below this folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.local_files import UnsafePath
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_path import StorePath


def download(path: StorePath) -> None:
    path.download(path.root.local / "copy", 1)


def upload(path: StorePath) -> None:
    path.upload(path.root.local / "new")


def open_file(path: StorePath) -> None:
    with path.open(100):
        pass


REFUSED: dict[str, Callable[[StorePath], object]] = {
    "read": lambda path: path.read(),
    "open": open_file,
    "read_range": lambda path: path.read_range(0, 1),
    "read_blocks": lambda path: list(path.read_blocks()),
    "read_log": lambda path: path.read_log(0, 1),
    "read_log_end": lambda path: path.read_log_end(1),
    "download": download,
    "write": lambda path: path.write(b"new"),
    "create": lambda path: path.with_name("other").create(b"new"),
    "upload": upload,
    "open_log": lambda path: path.open_log(),
}
"""What refuses a path through a linked folder."""
SEES_NOTHING: dict[str, Callable[[StorePath], object]] = {
    "stat": lambda path: path.stat(),
    "exists": lambda path: path.exists(),
    "list_folder": lambda path: path.parent.list_folder(),
    "find_in_folders": lambda path: path.parent.parent.find_in_folders(path.name),
    "walk": lambda path: path.parent.walk(),
    "remove": lambda path: path.remove(),
    "remove_tree": lambda path: path.parent.remove_tree(),
    "remove_tree of a folder in it": lambda path: path.with_name("inner").remove_tree(),
}
"""What takes a linked folder for an empty one."""


@pytest.fixture
def victim(tmp_path) -> Path:
    """A folder outside of the store."""
    (tmp_path / "victim" / "inner").mkdir(parents=True)
    (tmp_path / "victim" / "file").write_text("secret")
    return tmp_path / "victim"


@pytest.fixture(params=["a folder", "a folder above"])
def linked(request, tmp_path, victim) -> StorePath:
    """A file in the store behind a link to the victim."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "new").write_bytes(b"new")
    if request.param == "a folder":
        (root / "link").symlink_to(victim)
        return open_root(root) / "link" / "file"
    (root / "link").symlink_to(victim.parent)
    return open_root(root) / "link" / "victim" / "file"


@pytest.mark.parametrize("operation", REFUSED.values(), ids=REFUSED)
def test_no_linked_folder_is_passed(linked, victim, operation):
    """F8."""
    with pytest.raises(UnsafePath, match="is a link or is reached through one"):
        operation(linked)
    assert sorted(os.listdir(victim)) == ["file", "inner"]
    assert (victim / "file").read_text() == "secret"


@pytest.mark.parametrize("operation", SEES_NOTHING.values(), ids=SEES_NOTHING)
def test_a_linked_folder_is_empty(linked, victim, operation):
    """F8."""
    assert not operation(linked)
    assert sorted(os.listdir(victim)) == ["file", "inner"]
    assert (victim / "file").read_text() == "secret"


@pytest.mark.parametrize("operation", (REFUSED | SEES_NOTHING).values(), ids=REFUSED | SEES_NOTHING)
def test_a_linked_file_is_neither_read_nor_changed(tmp_path, victim, operation):
    """F8. A link that is replaced or removed is no link to the victim any more."""
    (tmp_path / "root" / "folder").mkdir(parents=True)
    (tmp_path / "root" / "new").write_bytes(b"new")
    file = open_root(tmp_path / "root") / "folder" / "file"
    file.local.symlink_to(victim / "file")
    with contextlib.suppress(UnsafePath, MachineError):
        assert "secret" not in str(operation(file))
    assert (victim / "file").read_text() == "secret"
