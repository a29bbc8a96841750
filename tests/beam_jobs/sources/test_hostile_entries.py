"""Entries of a raw folder that lead elsewhere: each is refused at its own place,
and its content appears nowhere."""

from __future__ import annotations

import os

import pytest
from pydantic import TypeAdapter, ValidationError

from beam_jobs.sources.source import Reject, SourceFiles
from pipeline_ops.config.export import Export
from pipeline_ops.config.sources import AnySource, ImageFolderSource
from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.raw_data.limits import MAX_REJECTS, TooLarge
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.remote import RemoteFolder
from pipeline_ops.storage.store_options import wait_at_most

SECRET = "-----BEGIN OPENSSH PRIVATE KEY-----"


@pytest.fixture
def key(raw):
    """A private key next to the folder of raw data."""
    file = raw.folder.parent / "id_ed25519"
    file.write_text(SECRET)
    return file


def test_an_image_folder_keeps_out_links_that_leave_it(raw, key):
    """F12."""
    raw.add("cat/1.png")
    (raw.folder / "cat" / "2.png").symlink_to(key)
    (raw.folder / "cat" / "3.png").symlink_to("/proc/self/environ")
    os.mkfifo(raw.folder / "cat" / "4.png")
    records, rejected = raw.read(type="image_folder")
    assert list(records) == ["cat/1.png"]
    assert {name: reason for name, (reason, _) in rejected.items()} == {
        "cat/2.png": "link_outside",
        "cat/3.png": "link_outside",
        "cat/4.png": "not_regular",
    }
    assert SECRET not in str(rejected)


def test_a_dead_link_that_a_manifest_does_not_name_is_no_part_of_the_data(raw):
    raw.add("1.png")
    raw.add("m.csv", "path,label\n1.png,cat\n")
    (raw.folder / "old.png").symlink_to(raw.folder / "gone.png")
    records, rejected = raw.read(type="csv", manifest="m.csv", task="classification")
    assert (list(records), rejected) == (["1.png"], {})


@pytest.mark.parametrize(
    "name", ["key.png", "../id_ed25519", "/etc/hostname", "sub/../../id_ed25519"]
)
def test_a_manifest_can_not_name_a_file_outside(raw, key, name):
    """F12."""
    raw.add("1.png")
    raw.add("m.csv", f"path,label\n1.png,cat\n{name},cat\n")
    (raw.folder / "key.png").symlink_to(key)
    records, rejected = raw.read(type="csv", manifest="m.csv", task="classification")
    assert list(records) == ["1.png"]
    [(reason, _)] = rejected.values()
    assert reason in ("link_outside", "missing_image")
    assert SECRET not in str(rejected)


@pytest.mark.parametrize("name", ["../id_ed25519", "key.csv"])
def test_a_manifest_outside_is_not_read(raw, key, name):
    """F12: the first line of a foreign file stood in the message."""
    raw.add("1.png")
    (raw.folder / "key.csv").symlink_to(key)
    with pytest.raises(DataError) as error:
        raw.read(type="csv", manifest=name, task="classification")
    assert SECRET not in str(error.value)
    assert "preprocess.source.manifest" in str(error.value)


@pytest.mark.parametrize(
    "path, rule",
    [
        ("raw/{start:{end.__class__.__init__.__globals__}}", "takes a format of strftime"),
        ("raw/{start!r}", "takes a format of strftime"),
        ("raw/{start.__class__}", "only the start and the end"),
        ("raw/{start:%Y{end}}", "takes a format of strftime"),
    ],
)
def test_an_interval_in_a_path_walks_no_attributes(path, rule):
    """F20."""
    with pytest.raises(ValidationError, match=rule):
        TypeAdapter(AnySource).validate_python({"type": "image_folder", "path": path})


@pytest.mark.parametrize(
    "path", ["raw/{start:%Y-%m-%d}", "raw/{start:%Y}/{end:%H}00", "raw/{start}"]
)
def test_an_interval_takes_every_format_of_strftime(path):
    assert (
        TypeAdapter(AnySource).validate_python({"type": "image_folder", "path": path}).has_interval
    )


@pytest.mark.parametrize(
    "place", ["s3://key:geheim@bucket/raw", "ftp://user:geheim@host/raw", "https://geheim@host/raw"]
)
def test_a_uri_with_a_password_is_refused_and_not_repeated(place):
    """F17."""
    for read in (
        lambda: ImageFolderSource.model_validate({"type": "image_folder", "path": place}),
        lambda: Export.model_validate({"model": "m", "registry": place}),
    ):
        with pytest.raises(ValidationError) as error:
            read()
        [problem] = error.value.errors()
        assert "must not hold a user name or a password" in problem["msg"]
        assert "geheim" not in problem["msg"]


def test_a_web_server_that_refuses_connections_is_not_an_empty_folder():
    """F19."""
    wanted = pytest.raises(MachineError, match="Check that the store can be reached")
    with wait_at_most(0), wanted:
        RemoteFolder("http://127.0.0.1:9/raw").list_files()


def test_rejects_without_end_are_one_error(tmp_path):
    """M2: 3 million rejects took 2.3 GB, whatever file they came from."""

    def read_entries():
        for row in range(2 * MAX_REJECTS):
            with files.entry(f"a#{row}"):
                raise Reject("corrupt", "no image")
        yield from ()

    files = SourceFiles(Listing(tmp_path, (), ()), "own")
    message = f"{tmp_path}: has {MAX_REJECTS + 1} entries to reject.* is a#{MAX_REJECTS} "
    with pytest.raises(TooLarge, match=message):
        files.collect(read_entries())
