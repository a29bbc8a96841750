"""A data set as a host reads it: checked once, or streamed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from pipeline_ops.config.train import InputOptions
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.job.local_inputs import open_host_cache, open_host_dataset
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_options import wait_at_most
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
def in_s3(dataset, s3_uri) -> str:
    for file in Path(dataset).parent.iterdir():
        (open_root(s3_uri) / file.name).upload(file)
    return f"{s3_uri}/manifest.json"


def open_dataset(uri: str, cache: HostCache, said=None, **config):
    return open_host_dataset(
        uri, InputOptions(**config), cache, (said if said is not None else []).append
    )


def test_a_data_set_in_s3_is_streamed_and_no_shard_is_fetched_before(in_s3, cache, tmp_path):
    said: list[str] = []
    found = open_dataset(in_s3, cache, said)
    assert found.is_streamed
    assert (
        str(found.locate(found.manifest.get_file(SHARD))) == f"{in_s3.rpartition('/')[0]}/{SHARD}"
    )
    assert "streaming 4 shards" in said[0] and "Up to 1024.0 MiB" in said[0]
    assert not (tmp_path / "host").exists()


def test_always_streams_from_a_folder_too(in_folder, cache):
    assert not open_dataset(in_folder, cache).is_streamed
    assert open_dataset(in_folder, cache, local_copy="always").is_streamed


def test_a_small_file_is_compared_with_the_manifest(in_folder, cache, tmp_path):
    found = open_dataset(in_folder, cache, local_copy="always")
    shard = tmp_path / "dataset" / SHARD
    content = shard.read_bytes()
    assert found.read_file(SHARD) == content
    assert found.read_file("class_weights.json") is None
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(MachineError, match=f"{shard} has another checksum than in the manifest"):
        found.read_file(SHARD)
    shard.unlink()
    with pytest.raises(MachineError, match=f"{shard} is missing"):
        found.read_file(SHARD)


def test_a_limit_below_one_gib_can_be_set(tmp_path):
    options = InputOptions(local_folder=str(tmp_path), local_limit_gib=0.5)
    assert open_host_cache(options).limit_bytes == 512 << 20


@pytest.mark.parametrize("path", ["../../../dags/x.py", "/tmp/x.py"])
def test_a_manifest_that_names_a_place_outside_is_refused(in_folder, cache, path):
    """F7."""
    value = json.loads(Path(in_folder).read_text())
    value["files"][0]["path"] = path
    Path(in_folder).write_text(json.dumps(value))
    with pytest.raises(DataError, match="files.0.path"):
        open_dataset(in_folder, cache, local_copy="always")


def test_a_link_among_the_shards_is_not_taken_for_checked(in_folder, tmp_path, cache):
    """F7."""
    shard = tmp_path / "dataset" / SHARD
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MachineError, match=f"{SHARD} is a link"):
        open_dataset(in_folder, cache)


def test_a_store_that_is_not_there_is_a_machine_failure_that_names_the_place(
    in_s3, cache, monkeypatch
):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    wanted = r"s3://.*manifest.json: .*Check that the store can be reached"
    with wait_at_most(0), pytest.raises(MachineError, match=wanted):
        read_manifest(in_s3)


def test_a_manifest_that_is_not_there_is_said_so(in_s3):
    with pytest.raises(DataError, match="there is no such manifest"):
        read_manifest(in_s3 + "x")


def test_in_a_folder_of_this_host_it_is_checked_once_and_used_where_it_lies(
    in_folder, cache, tmp_path
):
    assert not open_dataset(in_folder, cache).is_streamed
    shard = tmp_path / "dataset" / SHARD
    status = shard.stat()
    assert len(list((tmp_path / "host").glob("trainyard-cache/*/checked-*"))) == 1
    assert not open_dataset(in_folder, cache).is_streamed
    assert len(list((tmp_path / "host").glob("trainyard-cache/*/checked-*"))) == 1
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(
        MachineError, match=f"{SHARD} has another checksum.*Clear the task preprocess"
    ):
        open_dataset(in_folder, cache)
    shard.unlink()
    with pytest.raises(MachineError, match=f"{SHARD} is missing"):
        open_dataset(in_folder, cache)
