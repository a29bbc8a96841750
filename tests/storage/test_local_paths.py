"""Paths from outside stay below their root, and lead to no link, pipe or huge file (F7, F8)."""

from __future__ import annotations

import contextlib
import os
import socket

import pytest
from pydantic import BaseModel, ValidationError

from pipeline_ops.errors import DataError
from pipeline_ops.storage.local_files import (
    RelativePath,
    UnsafePath,
    open_below,
    open_folder,
    open_new_below,
    parse_relative_path,
)
from pipeline_ops.storage.open_store import open_root


@pytest.mark.parametrize(
    "path",
    [
        "a",
        "a/b.json",
        "train-00000-of-00002.tfrecord",
        "model/variables/variables.index",
        "ä/日本",
        "a b",
        "..a",
        "a..",
        ".hidden",
        "x" * 255,
    ],
)
def test_an_ordinary_relative_path_is_taken_as_it_is(path):
    assert parse_relative_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/etc/passwd",
        "//a",
        "..",
        "../a",
        "a/..",
        "a/../b",
        "a/./b",
        ".",
        "./a",
        "a//b",
        "a/",
        "a\0b",
        "a\nb",
        "a\x7f",
        "a\\b",
        "..\\a",
        "\ud800",
        "x" * 256,
        "é" * 200,
        "a/" * 600 + "a",
        "../../../dags/x.py",
    ],
)
def test_a_path_that_leaves_its_folder_or_has_two_spellings_is_refused(path):
    """F7."""
    with pytest.raises(UnsafePath, match="not a usable relative path") as refused:
        parse_relative_path(path)
    assert isinstance(refused.value, DataError)
    assert len(str(refused.value)) < 1500


def test_a_model_with_such_a_field_names_the_field():
    class Entry(BaseModel):
        path: RelativePath

    with pytest.raises(ValidationError, match=r"(?s)path.*absolute"):
        Entry(path="/etc/passwd")


@pytest.fixture
def root(tmp_path):
    """A storage root that is a link itself, with one of each kind of entry below."""
    real, outside = tmp_path / "real", tmp_path / "outside"
    (real / "folder" / "deep").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (real / "file").write_text("content")
    (real / "folder" / "deep" / "file").write_text("deep content")
    (real / "link").symlink_to(outside / "secret")
    (real / "inner_link").symlink_to("file")
    (real / "linked_folder").symlink_to(outside)
    (real / "folder" / "up").symlink_to("../..")
    (real / "dangling").symlink_to("nowhere")
    (real / "loop").symlink_to("loop")
    os.mkfifo(real / "pipe")
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(real):
        server.bind("socket")
    (tmp_path / "root").symlink_to(real)
    return tmp_path / "root"


def read_below(root, path, max_bytes) -> bytes:
    return (open_root(root) / path).read(max_bytes)


def test_a_file_below_a_root_is_read(root):
    assert read_below(root, "file", 7) == b"content"
    assert read_below(root, "folder/deep/file", 100) == b"deep content"
    with open_below(root, "file") as file:
        assert file.read(3) == b"con"


LINKS = (
    "link",
    "inner_link",
    "dangling",
    "loop",
    "linked_folder/secret",
    "folder/up/outside/secret",
    "folder/up",
    "linked_folder",
    "file/x",
)


@pytest.mark.parametrize("path", [*LINKS, "folder", "pipe", "socket"])
def test_no_link_pipe_socket_or_folder_is_read(root, path):
    """F8: a link to the API server's configuration was served. A pipe would hang the reader."""
    with pytest.raises(UnsafePath, match="root/" + path):
        read_below(root, path, 1000)


def test_a_missing_file_is_missing_and_not_unsafe(root):
    with pytest.raises(FileNotFoundError, match="root/folder/none"):
        read_below(root, "folder/none", 10)
    with pytest.raises(FileNotFoundError):
        read_below(root / "nowhere", "file", 10)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(root):
    with open(root / "sparse", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(
        UnsafePath, match=r"root/sparse has 1099511627776 bytes\. At most 1000 are allowed"
    ):
        read_below(root, "sparse", 1000)


def write_below(root, path, content, mode=0o666):
    with open_new_below(root, path, mode) as file:
        file.write(content)


def test_what_is_written_stays_below_the_root(root):
    """F8: the API server wrote into any folder."""
    write_below(root, "folder/deep/new.json", b"{}", 0o600)
    assert (root / "folder/deep/new.json").read_bytes() == b"{}"
    assert (root / "folder/deep/new.json").stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(root / "folder/deep")) == ["file", "new.json"]
    write_below(root, "top", b"x")
    write_below(root, "made/x", b"x")
    assert (root / "top").read_bytes() == (root / "made" / "x").read_bytes() == b"x"
    for path in ("linked_folder/x", "folder/up/outside/x", "../x", "/tmp/x", "file/x"):
        with pytest.raises(UnsafePath):
            write_below(root, path, b"x")
    assert os.listdir(root.parent / "outside") == ["secret"]


def test_a_link_in_the_place_of_a_written_file_is_replaced_and_not_followed(root):
    write_below(root, "link", b"new")
    assert (root / "link").read_bytes() == b"new"
    assert not (root / "link").is_symlink()
    assert (root.parent / "outside/secret").read_text() == "secret"


def test_a_folder_below_a_root_is_opened_for_work_relative_to_it(root):
    with open_folder(root, "folder/deep") as descriptor:
        assert os.listdir(descriptor) == ["file"]
    for path in ("linked_folder", "folder/up", "file", "inner_link"):
        with pytest.raises(UnsafePath):
            open_folder(root, path).__enter__()


def test_no_descriptor_is_leaked(root):
    before = len(os.listdir("/proc/self/fd"))
    for path in ("file", "link", "none", "folder/deep/file", "folder/up/x", "pipe", "folder"):
        with contextlib.suppress(OSError, UnsafePath):
            read_below(root, path, 10)
    assert len(os.listdir("/proc/self/fd")) == before
