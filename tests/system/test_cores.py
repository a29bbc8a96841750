"""The number of cores, with the files of both versions of cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline_ops.system.host import count_cores

HERE = len(os.sched_getaffinity(0))


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", HERE), ("50000 100000", 1), ("100000 100000", 1), ("9900000 100000", HERE)],
)
def test_version_2(tmp_path, quota, cores):
    own = tmp_path / "own"
    own.write_text("0::/\n")
    write(tmp_path / "mount", cpu__max=quota)
    assert count_cores(tmp_path / "mount", own) == cores


def test_a_limit_of_a_group_around_counts_and_a_part_of_a_core_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    own = tmp_path / "own"
    own.write_text("0::/kubepods/pod1/container\n")
    write(tmp_path / "mount" / "kubepods" / "pod1" / "container", cpu__max="max 100000")
    write(tmp_path / "mount" / "kubepods" / "pod1", cpu__max="350000 100000")
    assert count_cores(tmp_path / "mount", own) == 4


def test_version_1_whose_path_is_not_seen_in_a_container(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    own = tmp_path / "own"
    own.write_text("4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n")
    folder = tmp_path / "mount" / "cpu,cpuacct"
    write(folder, cpu__cfs_quota_us="200000", cpu__cfs_period_us="100000")
    assert count_cores(tmp_path / "mount", own) == 2
    write(folder, cpu__cfs_quota_us="-1")
    assert count_cores(tmp_path / "mount", own) == 64


def test_a_machine_without_cgroups(tmp_path):
    assert count_cores(tmp_path, tmp_path / "missing") == HERE
