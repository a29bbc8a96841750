"""The promises of all places, kept by containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from containers import ContainerEngine
from places.kinds import Kind, KindJob
from places.test_places import TestPlace, make  # noqa: F401

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900)]


class Containers(Kind):
    """Containers of a daemon that may be lost. They share nothing but a bucket."""

    def __init__(self, folder: Path, engine: ContainerEngine, bucket: str):
        super().__init__(folder)
        self.environment, self.root, self.small_disk = {}, f"{bucket}/root", "/work"
        self._engine, self.hosts = engine, engine.hosts_file()

    def lose_host(self, job: KindJob) -> None:
        self._engine.lose()

    def restore_host(self) -> None:
        self._engine.start()


@pytest.fixture(scope="module")
def kind(engine, small_image, bucket, tmp_path_factory):
    return Containers(tmp_path_factory.mktemp("containers"), engine, bucket)
