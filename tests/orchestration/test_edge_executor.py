"""An Airflow with EdgeExecutor: its worker reaches only the API server, over HTTP. Airflow and its
provider come from the package index. One release is enough, because the executor starts the same
task as the others do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from plain_airflows import (
    PlainAirflow,
    keep_up,
    make_folder,
    share_environment,
    write_dag_file,
)

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

EDGE = {
    "AIRFLOW__CORE__EXECUTOR": "airflow.providers.edge3.executors.EdgeExecutor",
    "AIRFLOW__EDGE__API_ENABLED": "True",
    "AIRFLOW__EDGE__API_URL": "{url}/edge_worker/v1/rpcapi",
    "AIRFLOW__EDGE__JOB_POLL_INTERVAL": "1",
    "AIRFLOW__EDGE__HEARTBEAT_INTERVAL": "5",
}
WORKER = ("edge", "worker", "--concurrency", "2")


@pytest.fixture(scope="module")
def airflow(tmp_path_factory) -> Iterator[PlainAirflow]:
    folder = tmp_path_factory.mktemp("edge")
    make_folder(folder)
    write_dag_file(folder)
    environment = share_environment(tmp_path_factory, "3.3")
    yield from keep_up(PlainAirflow(folder, environment, executor=EDGE, worker=WORKER))


def test_a_run_comes_to_its_end(airflow):
    run = airflow.trigger("export", train__epochs=3)
    run.wait_for("success", seconds=600)
    assert (airflow.folder / "storage" / "models" / "digits" / "1" / "saved_model.pb").is_file()
