"""The cluster as a fixture. Without its programs its tests are skipped, which is an error on CI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from containers import install_missing

from .cluster import CNI_PROGRAMS, RealCluster

_PACKAGES = {"etcd": "etcd-server", str(CNI_PROGRAMS / "ptp"): "containernetworking-plugins"}
"""containerd and runc come with the Docker daemon."""


@pytest.fixture(scope="session")
def kubernetes_cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    if obstacle := find_obstacle():
        pytest.skip(f"no cluster of Kubernetes: {obstacle}")
    with RealCluster(request.getfixturevalue("engine")) as cluster:
        yield cluster


def find_obstacle() -> str | None:
    """The reason why no cluster can be made here. Installs missing packages if it may."""
    if os.geteuid() != 0:
        return "only root can start a kubelet"
    if shutil.which("go") is None:
        return "go is not in PATH, which builds Kubernetes"
    missing = install_missing(_PACKAGES)
    return f"not installed: {', '.join(missing)}" if missing else None
