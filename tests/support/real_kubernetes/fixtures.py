"""The cluster as a fixture. Without it, its tests are left out, and the summary says so.

They are not skipped: the programs are built with Go, which no other part of the project needs, so a
machine without it is no fault, on CI neither.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from containers import install_missing

from .cluster import CNI_PROGRAMS, RealCluster

_PACKAGES = {"etcd": "etcd-server", str(CNI_PROGRAMS / "ptp"): "containernetworking-plugins"}
"""containerd and runc come with the Docker daemon."""
_FIXTURE = "kubernetes_cluster"
_LEFT_OUT = pytest.StashKey[tuple[str, int]]()


@pytest.fixture(scope="session")
def kubernetes_cluster(engine) -> Iterator[RealCluster]:
    with RealCluster(engine) as cluster:
        yield cluster


def find_obstacle() -> str | None:
    """The reason why no cluster can be made here. Installs missing packages if it may."""
    if os.geteuid() != 0:
        return "only root can start a kubelet"
    if shutil.which("go") is None:
        return "go is not in PATH, which builds Kubernetes"
    missing = install_missing(_PACKAGES)
    return f"not installed: {', '.join(missing)}" if missing else None


@pytest.hookimpl(trylast=True)  # after the choice by marks and names
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = [item for item in items if _FIXTURE in getattr(item, "fixturenames", ())]
    if wanted and (obstacle := find_obstacle()):
        config.stash[_LEFT_OUT] = obstacle, len(wanted)
        config.hook.pytest_deselected(items=wanted)
        items[:] = [item for item in items if item not in wanted]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if found := config.stash.get(_LEFT_OUT, None):
        obstacle, count = found
        terminalreporter.write_line(
            f"Not run: {count} tests with a real Kubernetes cluster ({obstacle}).", yellow=True
        )
