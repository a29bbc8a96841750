"""A data set as a host reads it: near, checked once, and never half a copy."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import fsspec
import pytest

from pipeline_ops.artifacts.manifest import find_damage, read_manifest
from pipeline_ops.config.input import InputOptions
from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.jobs.local_copy import local_dataset
from pipeline_ops.system.disk_cache import HostCache

pytest_plugins = ["publishers"]
SHARD = "train-00001-of-00004.tfrecord"


@pytest.fixture
def cache(tmp_path):
    return HostCache(tmp_path / "host", 1 << 30)


@pytest.fixture
def in_folder(dataset, tmp_path) -> str:
    shutil.copytree(Path(dataset).parent, tmp_path / "dataset")
    return str(tmp_path / "dataset" / "manifest.json")


@pytest.fixture
def in_s3(dataset, s3_place) -> str:
    for file in Path(dataset).parent.iterdir():
        with fsspec.open(f"{s3_place}/{file.name}", "wb") as target:
            target.write(file.read_bytes())
    return f"{s3_place}/manifest.json"


def local(uri: str, cache: HostCache, said=None, **config) -> str:
    return local_dataset(
        uri, InputOptions(**config), cache, (said if said is not None else []).append
    )


def test_a_data_set_in_s3_is_copied_whole_and_checked(in_s3, dataset, cache, tmp_path):
    said: list[str] = []
    uri = local(in_s3, cache, said)
    assert Path(uri).is_relative_to(tmp_path / "host")
    assert find_damage(uri, read_manifest(uri), checksums=True) == []
    assert read_manifest(uri) == read_manifest(dataset)
    assert len(said) == 1
    assert "copying 12 shards" in said[0]
    assert local(in_s3, cache, said) == uri
    assert len(said) == 1


def test_of_several_who_ask_at_once_one_copies(in_folder, cache):
    said, uris = [], []
    threads = [
        threading.Thread(target=lambda: uris.append(local(in_folder, cache, said, stage="always")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(set(uris)), len(uris), len(said)) == (1, 4, 1)


@pytest.mark.parametrize("damage", ["flipped", "missing", "cut"])
def test_what_is_wrong_in_the_store_is_named_and_leaves_no_copy(in_s3, cache, tmp_path, damage):
    shard = f"{in_s3.rpartition('/')[0]}/{SHARD}"
    with fsspec.open(shard, "rb") as file:
        data = bytearray(file.read())
    data[100] ^= 1
    filesystem = fsspec.filesystem("s3", skip_instance_cache=True)
    filesystem.rm(shard)
    if damage != "missing":
        filesystem.pipe_file(shard, bytes(data) if damage == "flipped" else bytes(data[:-1]))
    with pytest.raises(MachineError) as error:
        local(in_s3, cache)
    assert shard in str(error.value)
    assert "clear the task preprocess" in str(error.value)
    assert not any((tmp_path / "host").rglob("dataset-*"))


def test_a_store_that_is_not_there_is_a_machine_failure_that_names_the_place(
    in_s3, cache, monkeypatch
):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with pytest.raises(MachineError, match=r"s3://.*manifest.json can't be read"):
        read_manifest(in_s3)
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def test_a_manifest_that_is_not_there_is_said_so(in_s3):
    with pytest.raises(DataError, match="there is no such manifest"):
        read_manifest(in_s3 + "x")


def test_in_a_folder_of_this_host_it_is_checked_once_and_used_where_it_lies(
    in_folder, cache, tmp_path
):
    assert local(in_folder, cache) == in_folder
    shard = tmp_path / "dataset" / SHARD
    status = shard.stat()
    assert len(list((tmp_path / "host").glob("trainyard-cache/*/checked-*"))) == 1
    assert local(in_folder, cache) == in_folder
    assert len(list((tmp_path / "host").glob("trainyard-cache/*/checked-*"))) == 1
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(
        MachineError, match=f"{SHARD} has another checksum.*clear the task preprocess"
    ):
        local(in_folder, cache)
    shard.unlink()
    with pytest.raises(MachineError, match=f"{SHARD} is missing"):
        local(in_folder, cache)


def test_always_copies_from_a_folder_too(in_folder, cache, tmp_path):
    uri = local(in_folder, cache, stage="always")
    shutil.rmtree(tmp_path / "dataset" / ".." / "dataset")
    assert find_damage(uri, read_manifest(uri), checksums=True) == []


@pytest.mark.parametrize("path", ["../../../dags/x.py", "/tmp/x.py"])
def test_a_manifest_that_names_a_place_outside_is_not_staged(dataset, tmp_path, cache, path):
    """F7."""
    shutil.copytree(Path(dataset).parent, tmp_path / "data")
    uri = tmp_path / "data" / "manifest.json"
    value = json.loads(uri.read_text())
    value["files"][0]["path"] = path
    uri.write_text(json.dumps(value))
    with pytest.raises(DataError, match="files.0.path"):
        local_dataset(str(uri), InputOptions(stage="always"), cache, print)
    assert not (tmp_path / "host").exists()


def test_a_link_among_the_shards_is_neither_staged_nor_taken_for_checked(dataset, tmp_path, cache):
    """F7."""
    shutil.copytree(Path(dataset).parent, tmp_path / "data")
    shard = tmp_path / "data" / SHARD
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    for config in (InputOptions(stage="always"), InputOptions()):
        with pytest.raises(MachineError, match=f"{SHARD} is a link"):
            local_dataset(str(tmp_path / "data" / "manifest.json"), config, cache, print)
