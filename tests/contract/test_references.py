"""Files of an artifact that lie in another artifact of the same job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from manifests import EMPTY_FINGERPRINT, make_manifest

from pipeline_ops.contract.dataset import compute_split_digest, list_shard_paths
from pipeline_ops.contract.manifest import (
    NAME,
    Manifest,
    ManifestFile,
    check_files,
    find_damage,
    list_files,
    parse_manifest,
    read_manifest,
    write_manifest,
)
from pipeline_ops.errors import DataError

HOLDER, OWN = "a" * 32, "c" * 32
SHARD = "train-00000-of-00001.tfrecord"


def make_dataset(files: list[ManifestFile], fingerprint: str = OWN) -> Manifest:
    return make_manifest(fingerprint_digest=fingerprint, files=files)


@pytest.fixture
def holder(tmp_path: Path) -> Path:
    """An artifact with a shard and a page."""
    folder = tmp_path / HOLDER
    folder.mkdir()
    (folder / SHARD).write_bytes(b"records")
    (folder / "data.html").write_bytes(b"page")
    write_manifest(folder, make_dataset(list_files(folder), HOLDER))
    return folder


@pytest.fixture
def own(holder: Path) -> Path:
    """An artifact with the same shard by reference, and a page of its own."""
    folder = holder.with_name(OWN)
    folder.mkdir()
    (folder / "data.html").write_bytes(b"page")
    shard = read_manifest(holder / NAME).get_file(SHARD).reference(holder)
    write_manifest(folder, make_dataset([*list_files(folder), shard]))
    return folder


def test_a_referenced_file_is_read_where_it_lies(own, holder):
    manifest = read_manifest(own / NAME)
    assert list_shard_paths(str(own / NAME), manifest, "train") == [str(holder / SHARD)]
    assert manifest.get_file("data.html").locate(own) == own / "data.html"
    assert find_damage(own / NAME, manifest, checksums=True) == []
    check_files(own / NAME, manifest, manifest.files)


def test_equal_contents_have_equal_digests_wherever_the_files_lie(own, holder):
    referenced, whole = read_manifest(own / NAME), read_manifest(holder / NAME)
    assert referenced.files != whole.files
    assert referenced.digest == whole.digest
    assert compute_split_digest(referenced, "train") == compute_split_digest(whole, "train")


def test_the_digests_of_a_manifest_from_before_references_stay():
    content = {
        "job": "preprocess",
        "pipeline": "digits",
        "fingerprint": EMPTY_FINGERPRINT.model_dump(),
        "fingerprint_digest": EMPTY_FINGERPRINT.digest,
        "inputs": {},
        "seeds": {"split": 3},
        "files": [
            {
                "path": "train-00000-of-00002.tfrecord",
                "num_bytes": 7,
                "crc32c": "e3069283",
                "sha256": "1" * 64,
                "num_examples": 2,
            },
            {
                "path": "train-00001-of-00002.tfrecord",
                "num_bytes": 9,
                "crc32c": "00000000",
                "num_examples": 3,
            },
        ],
        "figures": {"removed": {"train-00000-of-00002.tfrecord": [1]}},
    }
    manifest = parse_manifest(json.dumps(content).encode(), "there")
    assert [file.stored_at for file in manifest.files] == [None, None]
    assert manifest.digest == "6f87802b51ee537a8435216ff13e19e7"
    assert compute_split_digest(manifest, "train") == "b92b4cdf00a2a5906d2999d69b1a0fcd"


def test_a_reference_names_the_artifact_that_holds_the_file(own):
    again = read_manifest(own / NAME).get_file(SHARD).reference(own)
    assert again.stored_at == f"{HOLDER}/{SHARD}"
    page = read_manifest(own / NAME).get_file("data.html").reference(own)
    assert page.stored_at == f"{OWN}/data.html"


def test_damage_names_the_file_and_the_manifest_that_references_it(own, holder):
    manifest, shard = read_manifest(own / NAME), holder / SHARD
    named = f"{shard} (referenced by {own / NAME})"
    shard.write_bytes(b"RECORDS")
    assert find_damage(own / NAME, manifest) == []
    assert find_damage(own / NAME, manifest, checksums=True) == [
        f"{named} has another checksum than in the manifest"
    ]
    shard.write_bytes(b"")
    assert find_damage(own / NAME, manifest) == [f"{named} has 0 bytes, but 7 in the manifest"]
    shard.unlink()
    assert find_damage(own / NAME, manifest) == [f"{named} is missing"]
    (holder / "data.html").unlink()
    (holder / NAME).unlink()
    holder.rmdir()
    assert find_damage(own / NAME, manifest) == [f"{named} is missing"]


@pytest.mark.parametrize(
    "stored_at",
    [
        f"../{HOLDER}/{SHARD}",
        f"{HOLDER}/../../secret",
        f"{HOLDER}/./{SHARD}",
        f"{HOLDER}//{SHARD}",
        f"/{HOLDER}/{SHARD}",
        "/etc/passwd",
        f"{HOLDER}",
        f"{HOLDER}/",
        f"{HOLDER}\n/{SHARD}",
        f".{HOLDER}.work/{SHARD}",
        f"{HOLDER[1:]}/{SHARD}",
        f"{HOLDER}a/{SHARD}",
        f"s3://{HOLDER}/{SHARD}",
        f"{HOLDER}/a\\b",
        f"{HOLDER}/a\0b",
        f"{HOLDER}/{'x' * 2000}",
        "",
    ],
)
def test_a_location_outside_of_the_artifacts_of_the_job_is_refused(own, stored_at):
    value = json.loads((own / NAME).read_text())
    value["files"][1]["stored_at"] = stored_at
    (own / NAME).write_text(json.dumps(value))
    with pytest.raises(DataError, match=r"not a manifest .*: files.1.stored_at"):
        read_manifest(own / NAME)


@pytest.mark.parametrize("link", ["the file", "the folder"])
def test_no_link_is_followed_to_a_referenced_file(own, holder, tmp_path, link):
    linked = holder if link == "the folder" else holder / SHARD
    linked.rename(tmp_path / "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere")
    [damage] = find_damage(own / NAME, read_manifest(own / NAME))
    assert f"{holder / SHARD} is a link" in damage
