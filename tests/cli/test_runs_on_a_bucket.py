"""`trainyard run` with a root in a bucket: slow, failing, and unusable ones."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from cli.trainyard_command import Trainyard, cached_tasks, parse_summary
from object_servers.fault_proxy import FaultProxy
from object_servers.s3_server import S3Server

from pipeline_ops.contract.layout import Layout, iterate_manifests
from pipeline_ops.contract.manifest import find_damage, read_manifest
from pipeline_ops.planning.job_kinds import JOBS
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.open_store import open_root

pytestmark = [pytest.mark.stores, pytest.mark.timeout(1200)]

TRAIN = {"train__epochs": 1, "train__workers": 1, "train__strategy": "one_device"}
NO_RETRY = {f"{job}__retries": 0 for job in JOBS}


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    with S3Server() as server, FaultProxy(server.address) as proxy:
        server.make_bucket("bucket")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in server.build_environment(proxy.address).items():
                patch.setenv(name, value)
            yield proxy


def list_checksums(uri: str, suffix: str = "") -> dict[str, str]:
    return {
        file.path: file.crc32c for file in read_manifest(uri).files if file.path.endswith(suffix)
    }


def check_whole(root: str, jobs: set[str]) -> None:
    """Checks that these jobs have left artifacts, all of them whole, and the others none."""
    layout = Layout(open_root(root), "digits")
    made = {job: [*iterate_manifests(layout.artifacts(job))] for job in JOBS}
    assert {job for job in JOBS if made[job]} == jobs
    for path, manifest in itertools.chain.from_iterable(made.values()):
        assert find_damage(path, manifest) == []


def test_a_slow_failing_bucket_gives_the_bytes_of_a_folder_to_two_runs_at_once(tmp_path, proxy):
    (tmp_path / "folder").mkdir()
    local = parse_summary(Trainyard(tmp_path / "folder", **TRAIN).run())
    (tmp_path / "bucket").mkdir()
    trainyard = Trainyard(tmp_path / "bucket", storage__root="s3://bucket/slow", **TRAIN)
    with proxy.failing(latency_seconds=0.2, unavailable_one_in=20):
        first = parse_summary(trainyard.run())
        again = parse_summary(trainyard.run())
        with ThreadPoolExecutor(2) as pool:
            seeds = [f"train.seed={seed}" for seed in (1, 2)]
            both = [pool.submit(trainyard.run, "--set", seed) for seed in seeds]
            summaries = [parse_summary(each.result()) for each in both]
    assert cached_tasks(again) == {*JOBS}
    print(f"unchanged: {again['seconds']:.1f} s")
    for job, suffix in (("preprocess", ".tfrecord"), ("train", "weights.npz")):
        uris = [each["tasks"][job]["manifest"] for each in (local, first)]
        wanted, found = (list_checksums(uri, suffix) for uri in uris)
        assert found == wanted and found
    versions = Registry("s3://bucket/slow/models/digits").list_versions()
    assert {each["model"]["version"] for each in summaries} <= {each.number for each in versions}
    check_whole("s3://bucket/slow", {*JOBS})


def test_an_outage_ends_neither_a_run_nor_the_command_that_follows_it(tmp_path, proxy):
    """N6."""
    root = "s3://bucket/outage"
    trainyard = Trainyard(tmp_path, storage__root=root, **NO_RETRY, **TRAIN)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(trainyard.run)
        runs = open_root(root) / "runs/digits"
        while not any("/train/attempt-" in entry.name for entry in runs.walk()):
            assert not call.done(), call.result().stderr
            time.sleep(0.2)
        with proxy.failing(refused=True):
            time.sleep(30)
        ended = call.result()
    summary = parse_summary(ended)
    assert not cached_tasks(summary)
    assert ended.stderr.count("The store is away since") == 1, ended.stderr
    check_whole(root, {*JOBS})


@pytest.mark.parametrize(
    ("faults", "message", "kept"),
    [
        ({"denied": "all"}, "denies access.*Check the credentials", set()),
        ({"vanished": True}, "no such bucket.*Create it, or name another", set()),
        ({"ignore_conditions": True}, "Use a store with conditional writes", set()),
        (
            {"full": True, "only": "artifacts/digits/train"},
            "the bucket is full.*Make room in it",
            {"preprocess"},
        ),
    ],
    ids=["denied", "vanished", "without conditions", "full"],
)
def test_an_unusable_bucket_is_a_clear_error_and_nothing_is_half_done(
    tmp_path, proxy, faults, message, kept
):
    root = f"s3://bucket/{tmp_path.name}"
    trainyard = Trainyard(tmp_path, storage__root=root, **NO_RETRY, **TRAIN)
    with proxy.failing(**faults):
        failed = trainyard.run()
    assert failed.returncode != 0
    assert re.search(message, failed.stdout + failed.stderr), failed.stderr
    check_whole(root, kept)
    assert cached_tasks(parse_summary(trainyard.run())) == kept
    check_whole(root, {*JOBS})
