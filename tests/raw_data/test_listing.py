"""The raw files below a folder: their keys, their digest, and what is read again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from pipeline_ops.errors import DataError
from pipeline_ops.raw_data import local
from pipeline_ops.raw_data.local import list_raw_files, list_stats
from pipeline_ops.raw_data.raw_file import format_digest
from pipeline_ops.storage.open_store import open_root

SETTLING_SECONDS = 0.3
"""A shorter time than the product's, so that the tests need not wait."""


@pytest.fixture(autouse=True)
def short_settling(monkeypatch) -> None:
    monkeypatch.setattr(local, "_UNSETTLED_NS", int(SETTLING_SECONDS * 1e9))


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for name in ("b/2.png", "a/1.png", "a/deep/er/3.png"):
        (tmp_path / "raw" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "raw" / name).write_bytes(name.encode())
    return tmp_path / "raw"


@pytest.fixture
def listing(raw, tmp_path: Path):
    return lambda folder=raw: list_raw_files(folder, open_root(tmp_path / "listings"))


def read_index_file(tmp_path: Path) -> dict:
    [file] = (tmp_path / "listings").iterdir()
    return {
        json.loads(line.split("\t")[0]): line.split()[-1] for line in file.read_text().splitlines()
    }


def age(raw: Path) -> None:
    """Waits until the files count as settled: no one can set a ctime back."""
    newest = max(path.stat().st_ctime for path in raw.rglob("*"))
    time.sleep(max(0.0, newest + SETTLING_SECONDS + 0.05 - time.time()))


def test_keys_are_relative_paths_in_order(listing):
    assert [file.key for file in listing().files] == ["a/1.png", "a/deep/er/3.png", "b/2.png"]


def test_hidden_files_and_folders_are_no_data(raw, listing):
    before = listing()
    (raw / ".DS_Store").write_bytes(b"x")
    (raw / ".cache").mkdir()
    (raw / ".cache" / "1.png").write_bytes(b"x")
    assert listing() == before


def test_the_digest_follows_names_and_contents_and_not_places_or_times(raw, listing, tmp_path):
    before = listing().digest
    raw.rename(tmp_path / "elsewhere")
    os.utime(tmp_path / "elsewhere" / "a" / "1.png")
    assert listing(tmp_path / "elsewhere").digest == before
    (tmp_path / "elsewhere" / "a" / "1.png").write_bytes(b"A/1.png")
    changed = listing(tmp_path / "elsewhere").digest
    assert changed != before
    (tmp_path / "elsewhere" / "a" / "1.png").rename(tmp_path / "elsewhere" / "a" / "2.png")
    assert listing(tmp_path / "elsewhere").digest not in (before, changed)


def test_a_change_that_keeps_size_and_mtime_is_seen(raw, listing):
    age(raw)
    before, stat = listing().digest, (raw / "a" / "1.png").stat()
    (raw / "a" / "1.png").write_bytes(b"A/1.png")
    os.utime(raw / "a" / "1.png", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert listing().digest != before


def test_a_settled_file_is_read_once(raw, listing, tmp_path):
    """The index is trusted: a digest that was put there by hand comes back."""
    age(raw)
    listing()
    [file] = (tmp_path / "listings").iterdir()
    file.write_text(
        file.read_text().replace(
            read_index_file(tmp_path)["a/1.png"], "0123456789abcdef0123456789abcdef"
        )
    )
    assert listing().files[0].digest == 0x0123456789ABCDEF0123456789ABCDEF


def test_a_file_that_was_just_written_is_read_again(raw, listing, tmp_path):
    age(raw)
    age_seconds = SETTLING_SECONDS
    # On a machine that stood still in between, the file has settled.
    while age_seconds > SETTLING_SECONDS - 0.05:
        (raw / "a" / "1.png").write_bytes(b"new")
        listing()
        age_seconds = time.time() - (raw / "a" / "1.png").stat().st_ctime
    assert set(read_index_file(tmp_path)) == {"a/deep/er/3.png", "b/2.png"}


def test_a_removed_file_leaves_the_index(raw, listing, tmp_path):
    age(raw)
    listing()
    (raw / "b" / "2.png").unlink()
    listing()
    assert set(read_index_file(tmp_path)) == {"a/1.png", "a/deep/er/3.png"}


@pytest.mark.parametrize(
    "name", [b"caf\xe9.png", "café.png".encode(), b"50%.png", b"%E9.png", b"a\nb.png", b"[x]*.png"]
)
def test_every_name_has_a_key_that_leads_back_to_it(raw, listing, name):
    path = os.path.join(os.fsencode(raw), b"a", name)
    with open(path, "wb") as file:
        file.write(b"content")
    [found] = [
        file
        for file in listing().files
        if file.num_bytes == len(b"content") and file.has_content(b"content")
    ]
    found.key.encode()  # is text
    assert found.to_path(raw) == path


def test_a_percent_sign_is_not_taken_for_an_encoded_byte(raw, listing):
    (raw / "a" / "%E9.png").write_bytes(b"x")
    with open(os.path.join(os.fsencode(raw), b"a", b"\xe9.png"), "wb") as file:
        file.write(b"x")
    assert [file.key for file in listing().files if len(file.key) > 7 and "er" not in file.key] == [
        "a/%25E9.png",
        "a/%E9.png",
    ]


def test_a_raw_file_knows_its_content(listing):
    file = listing().files[0]
    assert file.has_content(b"a/1.png")
    assert not file.has_content(b"a/1.pnG")


def test_a_missing_folder_is_named_with_the_key_that_names_it(listing, tmp_path):
    with pytest.raises(
        DataError, match="nowhere: no such file or folder. Correct preprocess.source.path"
    ):
        listing(tmp_path / "nowhere")


def test_a_file_in_place_of_the_folder_is_named(raw, listing):
    with pytest.raises(DataError, match="1.png: not a directory"):
        listing(raw / "a" / "1.png")


def read_rejected(listing) -> dict[str, str]:
    return {entry.key: entry.reason for entry in listing.rejected}


def test_a_link_that_leads_nowhere_is_refused_at_its_own_place(raw, listing):
    before = listing()
    (raw / "a" / "4.png").symlink_to(raw / "gone.png")
    (raw / "a" / "5.png").symlink_to("5.png")
    found = listing()
    assert read_rejected(found) == {"a/4.png": "dead_link", "a/5.png": "dead_link"}
    assert found.files == before.files
    assert found.digest != before.digest


def test_a_link_to_a_file_outside_is_refused_and_not_opened(raw, listing, tmp_path):
    """F12: a private key came into the quarantine,
    and /proc/self/environ made the job fail for ever."""
    key = tmp_path / "id_ed25519"
    key.write_text("secret")
    (raw / "a" / "key.png").symlink_to(key)
    (raw / "a" / "environ.png").symlink_to("/proc/self/environ")
    (raw / "a" / "up.png").symlink_to("../../id_ed25519")
    found = listing()
    assert read_rejected(found) == dict.fromkeys(
        ["a/environ.png", "a/key.png", "a/up.png"], "link_outside"
    )
    assert "secret" not in repr(found)


def test_pipes_sockets_and_devices_are_refused_and_not_opened(raw, listing):
    os.mkfifo(raw / "a" / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(raw / "a" / "s"))
        assert read_rejected(listing()) == {"a/pipe": "not_regular", "a/s": "not_regular"}


def test_a_sparse_file_of_40_gib_is_refused_before_it_is_read(raw, listing):
    """F19."""
    with open(raw / "a" / "sparse.png", "wb") as file:
        file.truncate(40 << 30)
    assert read_rejected(listing()) == {"a/sparse.png": "too_large"}


def test_a_file_that_is_mostly_a_hole_is_refused_before_it_is_read(raw, listing):
    """M3. Half a hole, and small files, may be read."""
    for name, num_bytes, content in (
        ("sparse", 2 << 20, b"x"),
        ("half", 2 << 20, b"x" * (1 << 20)),
        ("small", 1 << 19, b"x"),
    ):
        with open(raw / "a" / f"{name}.png", "wb") as file:
            file.write(content)
            file.truncate(num_bytes)
    assert read_rejected(listing()) == {"a/sparse.png": "sparse"}


def test_a_circle_of_links_is_told_and_not_walked_for_ever(raw, listing):
    (raw / "a" / "loop").symlink_to(raw / "a")
    with pytest.raises(
        DataError, match="a/loop: this link leads to .*a, which holds the link itself. Remove it"
    ):
        listing()


def test_two_links_that_lead_to_each_other_are_a_circle_too(raw, listing):
    (raw / "a" / "to_b").symlink_to(raw / "b")
    (raw / "b" / "to_a").symlink_to(raw / "a")
    with pytest.raises(DataError, match="which holds the link itself"):
        listing()


def test_1500_nested_folders_are_refused(raw, listing):
    """F19: the recursion ended the job and the watcher in the triggerer."""
    here = os.open(raw, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    try:
        with pytest.raises(DataError, match="nested more than 100 deep. Move the files up"):
            listing()
        with pytest.raises(DataError, match="nested more than 100 deep"):
            list_stats(raw)
    finally:
        subprocess.run(
            ["rm", "-r", raw / "d"], check=True
        )  # Python's own rmtree gives up there, too


def test_links_that_stay_below_the_folder_are_followed(raw, listing, tmp_path):
    (raw / "a" / "link.png").symlink_to("../b/2.png")
    (raw / "c").symlink_to(raw / "b")
    by_key = {file.key: file for file in listing().files}
    assert by_key["a/link.png"].digest == by_key["c/2.png"].digest == by_key["b/2.png"].digest
    (tmp_path / "link to raw").symlink_to(raw)
    assert [file.key for file in listing(tmp_path / "link to raw").files] == sorted(by_key)


def test_a_link_to_a_folder_outside_stops_the_job(raw, listing, tmp_path):
    """A whole class may lie there, so one rejected record would be the wrong answer."""
    (tmp_path / "store").mkdir()
    (raw / "c").symlink_to(tmp_path / "store")
    with pytest.raises(
        DataError,
        match="raw/c: this link leads to .*store, out of the folder of raw data. Move or mount",
    ):
        listing()


DAMAGED = [
    b"{",
    b'"a/1.png"\t1 2 3 not-hex\n',
    b'["a"]\t1 2 3 ' + b"0" * 32 + b"\n",
    b"\xff\n",
    b'"a"\t1 2 3 ' + b"0" * 33,
    b"[" * 100_000,
    b"\0" * 1000,
]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_index_is_told_of_and_all_files_are_read_again(
    raw, listing, tmp_path, content, caplog
):
    """F16."""
    age(raw)
    before = listing()
    [file] = (tmp_path / "listings").iterdir()
    file.write_bytes(content)
    assert listing() == before
    assert f"{file}, line 1: not an index of raw files. All raw files are read again" in caplog.text
    assert read_index_file(tmp_path) == {
        each.key: format_digest(each.digest) for each in before.files
    }


def test_an_index_behind_a_link_is_not_read(raw, listing, tmp_path, caplog):
    """F16."""
    age(raw)
    before = listing()
    [file] = (tmp_path / "listings").iterdir()
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert listing() == before and "is a link" in caplog.text and not file.is_symlink()
