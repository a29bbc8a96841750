"""Initial weights: found with their digest by a plan, and checked wherever they are fetched."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml
from config_files import write_config

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.job.model_check import plan_training
from pipeline_ops.registry.weights import fetch_weights, find_weights
from pipeline_ops.retention.collector import Options, collect
from pipeline_ops.storage.open_store import open_path, open_root

CONTENT = b"weights" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def config_file(tmp_path) -> Path:
    return write_config(tmp_path, {"storage.root": str(tmp_path / "root")})


@pytest.fixture(params=["folder", "bucket"])
def place(request, tmp_path, monkeypatch) -> str:
    """A file of weights, by its path or its URI."""
    monkeypatch.setenv("TRAINYARD_LOCAL_FOLDER", str(tmp_path / "host"))
    if request.param == "folder":
        uri = str(tmp_path / "net.weights.h5")
    else:
        uri = f"{request.getfixturevalue('s3_uri')}/net.weights.h5"
    open_path(uri).write(CONTENT)
    return uri


def load(config_file: Path, place: str, sha256: str | None = SHA256) -> PipelineConfig:
    return load_config(config_file, {"train.warm_start": {"path": place, "sha256": sha256}})


def find(config: PipelineConfig):
    return find_weights(config.initial_weights, config.root)


def test_a_file_is_found_by_a_plan_and_fetched_with_its_name_and_content(config_file, place):
    found = find(load(config_file, place))
    assert (found.uri, found.digest) == (place, SHA256)
    fetched = Path(fetch_weights(found))
    assert (fetched.name, fetched.read_bytes()) == ("net.weights.h5", CONTENT)


def test_a_file_with_another_checksum_is_refused_with_both(config_file, place):
    config = load(config_file, place, "0" * 64)
    wrong = f"has the SHA-256 {SHA256}, and not {'0' * 64}. Get the file again, or correct "
    with pytest.raises((ConfigError, DataError), match=wrong):
        fetch_weights(find(config))


def test_a_file_that_is_changed_after_the_plan_is_refused_with_both(config_file, place):
    found = find(load(config_file, place))
    open_path(place).write(CONTENT[::-1])
    changed = hashlib.sha256(CONTENT[::-1]).hexdigest()
    with pytest.raises(DataError, match=f"{changed}, and .*{SHA256}"):
        fetch_weights(found)


def test_a_file_that_is_not_there_is_an_error_of_the_plan(config_file, place):
    open_path(place).remove()
    with pytest.raises(ConfigError, match=f"there is no {place}"):
        find(load(config_file, place))


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"index": b"x"}, "there is no .*ckpt-0.data-00000-of-00001. Get all files"),
        ({"index": b"x", "data-00001-of-00002": b"x"}, "there is no .*ckpt-0.data-00000-of-00002"),
        (
            {"index": b"x", "data-00000-of-00001": b"version https://git-lfs.github.com/spec/v1"},
            "ckpt-0.data-00000-of-00001 is a pointer of Git LFS .*git lfs pull",
        ),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_an_error_of_the_plan(
    config_file, tmp_path, files, fault
):
    for name, content in files.items():
        (tmp_path / f"ckpt-0.{name}").write_bytes(content)
    with pytest.raises(ConfigError, match=fault):
        find(load(config_file, str(tmp_path / "ckpt-0"), None))


def test_a_copy_from_a_bucket_is_used_again(config_file, s3_uri, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINYARD_LOCAL_FOLDER", str(tmp_path / "host"))
    place = open_path(f"{s3_uri}/net.npz")
    place.write(CONTENT)
    found = find(load(config_file, str(place)))
    fetched = fetch_weights(found)
    place.remove()
    assert fetch_weights(found) == fetched


def test_a_file_in_a_bucket_needs_its_checksum(config_file):
    config = load_config(config_file, {"train.warm_start": "s3://bucket/net.npz"})
    with pytest.raises(ConfigError, match=r"Write \{path: s3://bucket/net.npz, sha256: HEX\}"):
        find(config)


def test_a_folder_has_no_checksum(config_file, tmp_path):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/saved_model.pb").write_bytes(CONTENT)
    with pytest.raises(ConfigError, match="sha256 is for a single file, and .*saved has several"):
        find(load(config_file, str(tmp_path / "saved")))


def test_the_same_file_is_the_same_training_wherever_it_lies(config_file, tmp_path):
    digests = set()
    for file in (tmp_path / "a.npz", tmp_path / "b.npz"):
        file.write_bytes(CONTENT)
        digests.add(find(load(config_file, str(file), None)).digest)
    assert digests == {SHA256}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("weights resnet50", "got 'weights resnet50'. Write {path: FILE, sha256: HEX}; the file"),
        ({"path": "a.h5", "sha": "0"}, ".sha: unknown key; the nearest valid name is 'sha256'"),
        ({"path": "a.h5", "sha256": "0"}, ".sha256: must match the pattern ^[0-9a-f]{64}$"),
        ({"sha256": SHA256}, ".path: required, but not given"),
        ({"path": "s3://me:secret@bucket/a.h5"}, "must not hold a user name or a password"),
        (3, "must be a section ('key: value'), got 3"),
    ],
)
def test_a_wrong_value_is_one_line_with_the_cure(config_file, value, problem):
    values = yaml.safe_load(config_file.read_text())
    values["train"]["warm_start"] = value
    config_file.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError) as error:
        load_config(config_file)
    [line] = str(error.value).splitlines()
    assert f"train.warm_start{'' if problem[0] == '.' else ': '}" in line and problem in line
    assert "secret" not in line


def test_a_deep_check_reads_a_file_that_this_host_has(config_file, place):
    planned = plan_training(load(config_file, place), "python")
    assert planned.weights == ("" if "://" in place else place)


def test_the_collector_leaves_weights_that_an_earlier_version_has_added(config_file):
    config = load_config(config_file)
    for name in ("net.npz", "manifest.json"):
        (config.root / "weights/net" / name).write(CONTENT)
    collect(config, Options(older_than_days=0, grace_seconds=0))
    left = {entry.name for entry in (open_root(str(config.root)) / "weights").walk()}
    assert left == {"net/net.npz", "net/manifest.json"}
