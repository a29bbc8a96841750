"""The manifest: what makes a folder an artifact, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_ops.contracts.errors import DataError
from pipeline_ops.contracts.figures import files_of_saved_model
from pipeline_ops.contracts.fingerprint import Fingerprint
from pipeline_ops.contracts.manifest import (
    NAME,
    Input,
    Manifest,
    find_damage,
    list_files,
    read_input,
    read_manifest,
    refuse_damage,
    write_manifest,
)

FINGERPRINT = Fingerprint(config={"epochs": 3}, inputs={}, code={}, versions={})


def fill(folder: Path, **files: bytes) -> Manifest:
    """An artifact with some files; `sub__file` lies in a folder of its own."""
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    manifest = Manifest(job="train", pipeline="p", fingerprint=FINGERPRINT, fingerprint_digest=FINGERPRINT.digest,
                        files=list_files(folder, {"a": 7}))
    write_manifest(folder, manifest)
    return manifest


def test_a_manifest_is_read_as_it_was_written(tmp_path):
    manifest = fill(tmp_path, a=b"1", sub__b=b"22")
    assert read_manifest(tmp_path / NAME) == manifest


def test_every_file_is_listed_once_with_size_checksum_and_examples(tmp_path):
    manifest = fill(tmp_path, a=b"123456789", sub__b=b"22")
    assert [(file.path, file.num_bytes, file.num_examples) for file in manifest.files] == [("a", 9, 7), ("sub/b", 2, None)]
    assert manifest.file("a").crc32c == "e3069283"
    assert list_files(tmp_path, {"a": 7}) == manifest.files  # the manifest itself is no part of it


def test_a_file_that_is_not_listed_is_a_key_error(tmp_path):
    with pytest.raises(KeyError):
        fill(tmp_path, a=b"1").file("b")


def test_equal_contents_have_equal_digests_wherever_they_are(tmp_path):
    first, second = fill(tmp_path / "x", a=b"1", b=b"2"), fill(tmp_path / "y", b=b"2", a=b"1")
    assert first.digest == second.digest


@pytest.mark.parametrize("files", [{"a": b"2", "b": b"2"}, {"a": b"1", "c": b"2"}, {"a": b"1"}, {"a": b"1", "b": b"2", "c": b""}])
def test_other_contents_have_another_digest(tmp_path, files):
    assert fill(tmp_path / "x", a=b"1", b=b"2").digest != fill(tmp_path / "y", **files).digest


def test_a_manifest_that_is_not_there_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match="there is no such manifest; run the task that makes it again"):
        read_manifest(tmp_path / NAME)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"job": 3}', b"\xff\xfe"])
def test_what_is_no_manifest_is_named(tmp_path, content):
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(DataError, match=f"{NAME}: not a manifest of this version of Trainyard"):
        read_manifest(tmp_path / NAME)


def test_a_whole_artifact_has_no_damage(tmp_path):
    manifest = fill(tmp_path, a=b"1", sub__b=b"22")
    assert find_damage(tmp_path / NAME, manifest) == find_damage(tmp_path / NAME, manifest, checksums=True) == []


def test_damage_names_the_file_and_what_is_wrong(tmp_path):
    manifest = fill(tmp_path, a=b"1", b=b"22", c=b"333", d=b"4444")
    (tmp_path / "a").unlink()
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / "c").write_bytes(b"334")
    missing, size, checksum = find_damage(tmp_path / NAME, manifest, checksums=True)
    assert missing == f"{tmp_path}/a is missing"
    assert size == f"{tmp_path}/b has 1 bytes, the manifest says 2"
    assert checksum == f"{tmp_path}/c has another checksum than the manifest says"
    assert find_damage(tmp_path / NAME, manifest) == [missing, size]


def test_only_the_files_that_are_asked_for_are_refused(tmp_path):
    manifest = fill(tmp_path, a=b"1", saved_model__b=b"22")
    (tmp_path / "a").write_bytes(b"x")
    refuse_damage(tmp_path / NAME, manifest, files_of_saved_model(manifest))
    with pytest.raises(DataError, match="a has another checksum .*; remove the artifact, and run the task"):
        refuse_damage(tmp_path / NAME, manifest, manifest.files)


def test_an_input_is_the_one_that_was_planned_with_or_refused(tmp_path):
    manifest = fill(tmp_path, a=b"1")
    entry = Input(uri=str(tmp_path / NAME), digest=manifest.digest)
    assert read_input(entry) == manifest
    fill(tmp_path, a=b"2")
    with pytest.raises(DataError, match=f"but was {manifest.digest} when this job was planned; start a new run"):
        read_input(entry)


def test_a_file_that_another_manifest_knows_is_not_read_again(tmp_path):
    manifest = fill(tmp_path, a=b"1", b=b"2")
    known = manifest.file("a").model_copy(update={"crc32c": "from the other"})
    assert list_files(tmp_path, known={"a": known}) == [known, manifest.file("b")]
