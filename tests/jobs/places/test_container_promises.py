"""The promises of all places, kept by containers."""

from __future__ import annotations

import pytest
from containers import ContainerEngine, container_engine, why_not
from jobs.places.kinds import Kind, TinyJob
from jobs.places.test_places import TestPlace, make  # noqa: F401
from object_servers.s3_server import S3Server

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900)]


class Containers(Kind):
    """Containers of a daemon that may be lost. They share nothing but a bucket."""

    def __init__(self, folder, engine: ContainerEngine):
        super().__init__(folder)
        self.environment, self.root, self.small_disk = {}, "s3://bucket/root", "/work"
        self._engine, self.hosts = engine, engine.hosts_file()

    def lose_host(self, job: TinyJob) -> None:
        self._engine.lose()

    def restore_host(self) -> None:
        self._engine.start()


@pytest.fixture(scope="module")
def kind(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    with (
        container_engine(disk_bytes=128 << 20) as engine,
        S3Server(engine.gateway) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in server.build_environment().items():
            patch.setenv(name, value)
        server.make_bucket("bucket")
        yield Containers(tmp_path_factory.mktemp("containers"), engine)
