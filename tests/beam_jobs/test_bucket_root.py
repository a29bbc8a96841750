"""The data set of a storage root in a bucket: workers store its shards there."""

from __future__ import annotations

import tempfile

import pytest
import yaml
from small_disks import mount_small_disk

from beam_jobs.output.shard import ShardBuilder
from beam_jobs.preprocess import preprocess
from pipeline_ops.contract.layout import work_folder
from pipeline_ops.contract.manifest import find_damage, locate_file, read_manifest
from pipeline_ops.contract.request import read_status
from pipeline_ops.errors import ExitCode, MachineError
from pipeline_ops.job.runner import run_request
from pipeline_ops.storage.checksums import ChecksumAccumulator

pytestmark = pytest.mark.stores


@pytest.fixture
def remote(pipeline, s3_root):
    """A pipeline with its root in a bucket, without raw files yet."""
    values = yaml.safe_load(pipeline.config_file.read_text())
    values["storage"] = {"root": str(s3_root)}
    pipeline.config_file.write_text(yaml.safe_dump(values, sort_keys=False))
    return pipeline


def test_a_data_set_in_a_bucket_needs_no_room_on_the_disk_of_its_job(
    remote, encode, tmp_path, monkeypatch
):
    for number in range(90):
        remote.add(f"{'ab'[number % 2]}/{number}.png", encode(1024, 1024, 3, seed=number))
    plan = remote.plan(stages=[{"decode": {"channels": 3}}], shards=45)
    attempt = remote.request(plan)
    with mount_small_disk(tmp_path / "disk", "size=20m") as disk, monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(disk))
        run_request(preprocess, str(attempt.request))
        assert list(disk.iterdir()) == []
    status = read_status(attempt)
    assert status.exit_code is ExitCode.SUCCESS, status.message
    manifest = read_manifest(plan.manifest)
    assert sum(file.num_bytes for file in manifest.files) > 200 << 20
    assert find_damage(plan.manifest, manifest) == []
    for file in manifest.files:
        content = ChecksumAccumulator()
        for block in locate_file(plan.manifest, file).read_blocks():
            content.update(block)
        assert file.has_content(content.result), file.path


def test_a_try_after_a_failed_one_refers_to_its_shards(remote, encode, monkeypatch):
    for number in range(40):
        remote.add(f"{'ab'[number % 2]}/{number}.png", encode(seed=number))
    plan, build, built = remote.plan(shards=4, stages=["decode"]), ShardBuilder.build, []

    def fail_at_the_fifth(self, shard):
        if len(built) == 4:
            raise MachineError("the disk is full")
        built.append(shard.name)
        return build(self, shard)

    with monkeypatch.context() as patch:
        patch.setattr(ShardBuilder, "build", fail_at_the_fifth)
        first = remote.request(plan)
        run_request(preprocess, str(first.request))
    assert read_status(first).exit_code is ExitCode.RETRY
    second = remote.request(plan)
    run_request(preprocess, str(second.request))
    assert read_status(second).exit_code is ExitCode.SUCCESS, read_status(second).message
    manifest = read_manifest(plan.manifest)
    assert find_damage(plan.manifest, manifest) == []
    tokens = {file.path: file.stored_at.split("/")[1] for file in manifest.files}
    assert len(set(tokens.values())) == 2
    assert {name for name, token in tokens.items() if token == min(tokens.values())} == set(built)
    assert work_folder(plan.manifest.parent).walk() == []


def test_refused_data_leave_no_shard_in_the_bucket(remote, encode):
    for number in range(20):
        remote.add(f"{'ab'[number % 2]}/{number}.png", encode(height=8 + number // 19))
    plan = remote.plan(shards=4, stages=["decode"])
    attempt = remote.request(plan)
    run_request(preprocess, str(attempt.request))
    status = read_status(attempt)
    assert status.exit_code is ExitCode.DATA and "different shapes" in status.message
    assert plan.manifest.parent.walk() == []
    assert work_folder(plan.manifest.parent).walk() == []
