"""The raw files below a folder: their keys, their digest, and what is read again."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest

from pipeline_ops.contracts.errors import DataError
from pipeline_ops.contracts.listing import RawFile, list_raw_files


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for name in ("b/2.png", "a/1.png", "a/deep/er/3.png"):
        (tmp_path / "raw" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "raw" / name).write_bytes(name.encode())
    return tmp_path / "raw"


@pytest.fixture
def listing(raw, tmp_path: Path):
    return lambda folder=raw: list_raw_files(folder, tmp_path / "listings")


def index_of(tmp_path: Path) -> dict:
    [file] = (tmp_path / "listings").iterdir()
    return {json.loads(line.split("\t")[0]): line.split()[-1] for line in file.read_text().splitlines()}


def age(raw: Path) -> None:
    """Waits until the files count as settled: no one can set a ctime back."""
    newest = max(path.stat().st_ctime for path in raw.rglob("*"))
    time.sleep(max(0.0, newest + 2.1 - time.time()))


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
    file.write_text(file.read_text().replace(index_of(tmp_path)["a/1.png"], "from-the-index"))
    assert listing().files[0].digest == "from-the-index"


def test_a_file_that_was_just_written_is_read_again(raw, listing, tmp_path):
    age(raw)
    age_seconds = 2.0
    while age_seconds > 1.9:  # a machine that stood still in between has let the file settle
        (raw / "a" / "1.png").write_bytes(b"new")
        listing()
        age_seconds = time.time() - (raw / "a" / "1.png").stat().st_ctime
    assert set(index_of(tmp_path)) == {"a/deep/er/3.png", "b/2.png"}


def test_a_removed_file_leaves_the_index(raw, listing, tmp_path):
    age(raw)
    listing()
    (raw / "b" / "2.png").unlink()
    listing()
    assert set(index_of(tmp_path)) == {"a/1.png", "a/deep/er/3.png"}


@pytest.mark.parametrize("name", [b"caf\xe9.png", "café.png".encode(), b"50%.png", b"%E9.png", b"a\nb.png", b"[x]*.png"])
def test_every_name_has_a_key_that_leads_back_to_it(raw, listing, name):
    path = os.path.join(os.fsencode(raw), b"a", name)
    with open(path, "wb") as file:
        file.write(b"content")
    [found] = [file for file in listing().files if file.num_bytes == len(b"content") and file.holds(b"content")]
    found.key.encode()  # is text
    assert found.path(raw) == path


def test_a_percent_sign_is_not_taken_for_an_encoded_byte(raw, listing):
    (raw / "a" / "%E9.png").write_bytes(b"x")
    with open(os.path.join(os.fsencode(raw), b"a", b"\xe9.png"), "wb") as file:
        file.write(b"x")
    assert [file.key for file in listing().files if len(file.key) > 7 and "er" not in file.key] == ["a/%25E9.png", "a/%E9.png"]


def test_a_raw_file_knows_its_content(listing):
    file = listing().files[0]
    assert file.holds(b"a/1.png")
    assert not file.holds(b"a/1.pnG")


def test_a_missing_folder_is_named_with_the_key_that_names_it(listing, tmp_path):
    with pytest.raises(DataError, match="nowhere: no such file or folder; it is named by preprocess.source.path"):
        listing(tmp_path / "nowhere")


def test_a_file_in_place_of_the_folder_is_named(raw, listing):
    with pytest.raises(DataError, match="1.png: Not a directory"):
        listing(raw / "a" / "1.png")


def test_a_link_that_leads_nowhere_is_not_dropped_in_silence(raw, listing):
    (raw / "a" / "4.png").symlink_to(raw / "gone.png")
    with pytest.raises(DataError, match="4.png: neither a file nor a folder, or a link that leads nowhere; remove it"):
        listing()


def test_what_is_neither_file_nor_folder_is_named(raw, listing):
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(raw / "a" / "s"))
        with pytest.raises(DataError, match="neither a file nor a folder"):
            listing()


def test_a_circle_of_links_is_told_and_not_walked_for_ever(raw, listing):
    (raw / "a" / "loop").symlink_to(raw / "a")
    with pytest.raises(DataError, match="Too many levels of symbolic links"):
        listing()


def test_links_to_files_and_folders_are_followed(raw, listing, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "9.png").write_bytes(b"nine")
    (raw / "c").symlink_to(tmp_path / "store")
    assert RawFile("c/9.png", 4, listing().files[-1].digest) == listing().files[-1]
