"""Fixtures with a cluster whose workers are another user, and reach a bucket on an S3 server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from engine_stages import SECONDS_VARIABLE
from object_servers.fault_proxy import FaultProxy

from .cluster import Cluster
from .flink import FlinkCluster
from .spark import SparkCluster

CLUSTERS: dict[str, type[Cluster]] = {"flink": FlinkCluster, "spark": SparkCluster}
USER = "daemon"
_SUPPORT = Path(__file__).resolve().parents[1]
_MODULES = [_SUPPORT / "engine_stages.py", _SUPPORT / "engine_transforms.py"]
_PROGRAMS = {"java": "openjdk-17-jre-headless", "mvn": "maven", "setpriv": "util-linux"}


def find_obstacle() -> str | None:
    """The reason why no cluster of another user can run here."""
    if os.geteuid() != 0:
        return f"only root can start processes of the user {USER}"
    missing = [package for program, package in _PROGRAMS.items() if shutil.which(program) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


class EngineClusters:
    """At most one cluster at a time. Tests ask for it by name."""

    def __init__(self, environment: Mapping[str, str]):
        self._environment = environment
        self._running: Cluster | None = None

    def get(self, name: str) -> Cluster:
        """Returns a complete cluster: it is started, or what a test has killed is started again.
        A cluster of the other engine is stopped first."""
        if self._running and self._running.name != name:
            self.stop()
        if self._running is None:
            cluster = CLUSTERS[name](user=USER, environment=self._environment, modules=_MODULES)
            self._running = cluster.__enter__()
        else:
            self._running.restart_missing()
        return self._running

    def stop(self) -> None:
        if self._running:
            running, self._running = self._running, None
            running.__exit__(None, None, None)


@pytest.fixture(scope="module")
def store_of_workers(s3_address) -> Iterator[FaultProxy]:
    """The way of a cluster's workers to the bucket. The driver does not go through it."""
    with FaultProxy(s3_address.address) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def engine_clusters(s3_address, store_of_workers) -> Iterator[EngineClusters]:
    """For one module only, so that the module that waits for its turn gets it."""
    if obstacle := find_obstacle():
        pytest.skip(obstacle)
    slowly = {SECONDS_VARIABLE: "0.2"}
    clusters = EngineClusters(s3_address.build_environment(store_of_workers.address) | slowly)
    yield clusters
    clusters.stop()
