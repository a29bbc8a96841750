"""The manifest: what makes a folder an artifact, and what is wrong with one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import google_crc32c
import pytest

from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.manifest import (
    MAX_BYTES,
    NAME,
    Input,
    Manifest,
    check_files,
    find_damage,
    list_files,
    parse_manifest,
    read_input,
    read_manifest,
    write_manifest,
)
from pipeline_ops.contract.results import list_saved_model_files
from pipeline_ops.errors import ConfigError, DataError, MachineError
from pipeline_ops.storage.checksums import compute_digest

FINGERPRINT = Fingerprint(config={"epochs": 3}, inputs={}, code={}, versions={})


def fill(folder: Path, **files: bytes) -> Manifest:
    """An artifact with some files; `sub__file` lies in a folder of its own."""
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    manifest = Manifest(
        job="train",
        pipeline="p",
        fingerprint=FINGERPRINT,
        fingerprint_digest=FINGERPRINT.digest,
        files=list_files(folder),
    )
    write_manifest(folder, manifest)
    return manifest


def test_a_manifest_is_read_as_it_was_written(tmp_path):
    manifest = fill(tmp_path, a=b"1", sub__b=b"22")
    assert read_manifest(tmp_path / NAME) == manifest


def test_every_file_is_listed_once_with_size_and_checksum(tmp_path):
    manifest = fill(tmp_path, a=b"123456789", sub__b=b"22")
    assert [(file.path, file.num_bytes) for file in manifest.files] == [("a", 9), ("sub/b", 2)]
    assert manifest.get_file("a").crc32c == "e3069283"
    assert list_files(tmp_path) == manifest.files  # the manifest itself is no part of it


def test_a_described_file_is_not_read_again(tmp_path):
    first, _ = fill(tmp_path, a=b"123456789", sub__b=b"22").files
    described = first.model_copy(update={"num_examples": 7, "crc32c": "0" * 8})
    assert list_files(tmp_path, [described])[0] == described


def test_a_described_file_that_is_not_as_it_was_written_is_an_error(tmp_path):
    described, _ = fill(tmp_path, a=b"123456789", sub__b=b"22").files
    os.truncate(tmp_path / "a", 8)
    with pytest.raises(MachineError, match=r"a has 8 bytes, and 9 were written"):
        list_files(tmp_path, [described])
    (tmp_path / "a").unlink()
    with pytest.raises(MachineError, match=r"a was removed after it was written"):
        list_files(tmp_path, [described])


def test_a_file_that_is_not_listed_is_a_key_error(tmp_path):
    with pytest.raises(KeyError):
        fill(tmp_path, a=b"1").get_file("b")


def test_equal_contents_have_equal_digests_wherever_they_are(tmp_path):
    first, second = fill(tmp_path / "x", a=b"1", b=b"2"), fill(tmp_path / "y", b=b"2", a=b"1")
    assert first.digest == second.digest


@pytest.mark.parametrize(
    "files",
    [{"a": b"2", "b": b"2"}, {"a": b"1", "c": b"2"}, {"a": b"1"}, {"a": b"1", "b": b"2", "c": b""}],
)
def test_other_contents_have_another_digest(tmp_path, files):
    assert fill(tmp_path / "x", a=b"1", b=b"2").digest != fill(tmp_path / "y", **files).digest


def test_a_manifest_that_is_not_there_says_what_to_do(tmp_path):
    with pytest.raises(
        DataError, match="there is no such manifest. Run the task that makes it again"
    ):
        read_manifest(tmp_path / NAME)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"job": 3}', b"\xff\xfe"])
def test_what_is_no_manifest_is_named(tmp_path, content):
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(DataError, match=f"{NAME}: not a manifest of this version of Trainyard"):
        read_manifest(tmp_path / NAME)


def test_a_whole_artifact_has_no_damage(tmp_path):
    manifest = fill(tmp_path, a=b"1", sub__b=b"22")
    assert (
        find_damage(tmp_path / NAME, manifest)
        == find_damage(tmp_path / NAME, manifest, checksums=True)
        == []
    )


def test_damage_names_the_file_and_what_is_wrong(tmp_path):
    manifest = fill(tmp_path, a=b"1", b=b"22", c=b"333", d=b"4444")
    (tmp_path / "a").unlink()
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / "c").write_bytes(b"334")
    missing, size, checksum = find_damage(tmp_path / NAME, manifest, checksums=True)
    assert missing == f"{tmp_path}/a is missing"
    assert size == f"{tmp_path}/b has 1 bytes, but 2 in the manifest"
    assert checksum == f"{tmp_path}/c has another checksum than in the manifest"
    assert find_damage(tmp_path / NAME, manifest) == [missing, size]


def test_only_the_files_that_are_asked_for_are_refused(tmp_path):
    manifest = fill(tmp_path, a=b"1", saved_model__b=b"22")
    (tmp_path / "a").write_bytes(b"x")
    check_files(tmp_path / NAME, manifest, list_saved_model_files(manifest))
    with pytest.raises(
        DataError, match="a has another checksum .*. Remove the artifact that holds it"
    ):
        check_files(tmp_path / NAME, manifest, manifest.files)


def test_an_input_is_the_one_that_was_planned_with_or_refused(tmp_path):
    manifest = fill(tmp_path, a=b"1")
    entry = Input(uri=str(tmp_path / NAME), digest=manifest.digest)
    assert read_input(entry) == manifest
    fill(tmp_path, a=b"2")
    with pytest.raises(
        DataError, match=f"but was {manifest.digest} when this job was planned. Start a new run"
    ):
        read_input(entry)


def manifest_json(**changes) -> dict:
    """A manifest in its form on the disk, with some changes of its first file."""
    file = {
        "path": "a",
        "num_bytes": 1,
        "crc32c": "00000000",
        "sha256": "0" * 64,
        "num_examples": None,
        **changes,
    }
    return {
        "job": "train",
        "pipeline": "p",
        "fingerprint": FINGERPRINT.model_dump(),
        "fingerprint_digest": "",
        "files": [file],
    }


@pytest.mark.parametrize(
    "path",
    [
        "../../../dags/x.py",
        "/etc/passwd",
        "a/../b",
        "./a",
        "a//b",
        "",
        ".",
        "a\\b",
        "a\0b",
        "x" * 2000,
        NAME,
    ],
)
def test_a_path_that_leaves_the_folder_is_refused_where_the_manifest_is_read(tmp_path, path):
    """F7: such a file was written outside by fetch, export and staging."""
    (tmp_path / NAME).write_text(json.dumps(manifest_json(path=path)))
    with pytest.raises(
        DataError, match=rf"{NAME}: not a manifest of this version of Trainyard: files.0.path"
    ):
        read_manifest(tmp_path / NAME)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_bytes": -1},
        {"num_bytes": 1 << 70},
        {"crc32c": "x"},
        {"crc32c": "0" * 9},
        {"sha256": "0" * 63},
        {"crc32c": "00000000\n"},
        {"num_examples": -1},
    ],
)
def test_a_value_out_of_its_range_is_refused(changes):
    """F7."""
    with pytest.raises(DataError, match=f"there: not a manifest .*files.0.{next(iter(changes))}"):
        parse_manifest(json.dumps(manifest_json(**changes)).encode(), "there")


@pytest.mark.parametrize(
    "paths", [["a", "a"], ["a", "a/b"], ["a/b/c", "a/b"], ["a-", "a/b", "a", "a!"]]
)
def test_two_files_can_not_have_the_same_place(paths):
    """F7."""
    value = manifest_json() | {"files": [manifest_json(path=path)["files"][0] for path in paths]}
    with pytest.raises(DataError, match="listed"):
        parse_manifest(json.dumps(value).encode(), "there")


def test_the_check_of_the_paths_is_as_much_work_for_deep_ones():
    """N10: every folder of every path was made and looked up, 10 million for 20,000 files."""

    def count_calls(depth: int) -> int:
        paths = [f"{'a/' * depth}{number}" for number in range(100)]
        files = [manifest_json(path=path)["files"][0] for path in paths]
        content, calls = json.dumps(manifest_json() | {"files": files}).encode(), []
        sys.setprofile(lambda frame, event, function: calls.append(event))
        parse_manifest(content, "there")
        sys.setprofile(None)
        return len(calls)

    count_calls(1)
    assert count_calls(500) == count_calls(1)


def test_a_manifest_has_limits_and_a_message_repeats_nothing_of_it():
    """F7."""
    with pytest.raises(DataError, match=f"it has more than {MAX_BYTES} bytes"):
        parse_manifest(b" " * (MAX_BYTES + 1), "there")
    with pytest.raises(DataError, match="files: List should have at most 200000 items"):
        parse_manifest(json.dumps(manifest_json() | {"files": [0] * 200_001}).encode(), "there")
    for deep in (b"[" * 100_000, b'{"a":' * 100_000):
        with pytest.raises(DataError, match="not a manifest"):
            parse_manifest(deep, "there")
    with pytest.raises(DataError) as refused:
        parse_manifest(json.dumps({"job": ["root:x:0:0"], "key": "secret"}).encode(), "there")
    assert "root:x" not in str(refused.value) and "secret" not in str(refused.value)


def test_links_are_followed_neither_to_a_manifest_nor_to_a_file(tmp_path):
    """F7."""
    manifest = fill(tmp_path / "artifact", a=b"1", sub__b=b"22")
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "artifact" / "sub").rename(outside / "sub")
    (tmp_path / "artifact" / "sub").symlink_to(outside / "sub")
    (tmp_path / "artifact" / "a").rename(outside / "a")
    (tmp_path / "artifact" / "a").symlink_to(outside / "a")
    uri = tmp_path / "artifact" / NAME
    assert ["is a link" in damage for damage in find_damage(uri, manifest)] == [True, True]
    with pytest.raises(DataError, match="is a link"):
        list_files(tmp_path / "artifact")
    uri.rename(outside / NAME)
    uri.symlink_to(outside / NAME)
    with pytest.raises(DataError, match="is a link"):
        read_manifest(uri)


def test_what_only_looks_like_the_file_by_its_crc32c_is_found(tmp_path):
    """F7: CRC32C does not stop a person. These two contents have the same one."""
    manifest = fill(tmp_path, a=b"a" * 8)
    (tmp_path / "a").write_bytes(same_crc32c(b"a" * 8))
    assert (tmp_path / "a").read_bytes() != b"a" * 8
    assert google_crc32c.value(b"a" * 8) == google_crc32c.value((tmp_path / "a").read_bytes())
    assert find_damage(tmp_path / NAME, manifest, checksums=True) == [
        f"{tmp_path}/a has another checksum than in the manifest"
    ]
    old = manifest.model_copy(
        update={"files": [manifest.files[0].model_copy(update={"sha256": None})]}
    )
    assert find_damage(tmp_path / NAME, old, checksums=True) == []


def same_crc32c(content: bytes) -> bytes:
    """Another content of eight bytes with the same checksum: the register's polynomial,
    once more."""
    polynomial = int(f"{0x11EDC6F41:033b}"[::-1], 2)
    return bytes(a ^ b for a, b in zip(content, polynomial.to_bytes(8, "little"), strict=True))


def test_a_manifest_of_an_earlier_version_is_read_and_keeps_its_digest(tmp_path):
    """F7: registries stay readable."""
    value = manifest_json()
    del value["files"][0]["sha256"]
    manifest = parse_manifest(json.dumps(value).encode(), "there")
    assert manifest.files[0].sha256 is None
    assert manifest.digest == compute_digest(
        [{"path": "a", "num_bytes": 1, "crc32c": "00000000", "num_examples": None}]
    )
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path / NAME).digest == manifest.digest


@pytest.mark.parametrize(
    "uri",
    [
        "http://169.254.169.254/latest/manifest.json",
        "https://host/manifest.json",
        "ftp://host/manifest.json",
        "simplecache::http://host/manifest.json",
        "s3://bucket::http://host/manifest.json",
    ],
)
def test_no_uri_makes_a_process_ask_a_web_server(uri):
    """F7, F9: the inputs of a manifest are URIs."""
    with pytest.raises(ConfigError, match="is not a place for artifacts. Use a folder, or a URI"):
        read_manifest(uri)
