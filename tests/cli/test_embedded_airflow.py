"""A real embedded Airflow on a small DAG folder, from an empty home to its end."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import psutil
import pytest
from held_airflow import hold_airflow
from processes import query_process

from pipeline_ops.cli.airflow_api import AirflowApi
from pipeline_ops.cli.embedded_airflow import USER, AirflowServer
from pipeline_ops.errors import ConfigError

pytestmark = pytest.mark.airflow

_DAG = """
import datetime as dt
from airflow.sdk import DAG, task
with DAG("small", schedule="@daily", start_date=dt.datetime(2024, 1, 1), catchup=False):
    @task
    def only(): ...
    only()
"""


@pytest.fixture
def server(tmp_path, survivors) -> Iterator[AirflowServer]:
    """An Airflow that runs during the test. No process of it is left after the test."""
    (tmp_path / "small.py").write_text(_DAG)
    (tmp_path / "broken.py").write_text(
        "from airflow.sdk import DAG\nraise RuntimeError('an unusable config')\n"
    )
    with hold_airflow(tmp_path, "/configs/a.yaml", survivors.environment) as server:
        yield server
        # Four programs, four workers, and the holder.
        assert len(survivors.look()) >= 9
    assert survivors.look() == []


def test_a_home_of_its_own_on_loopback_only_without_schedules(server, survivors):
    with AirflowApi(server.url, USER, server.password) as api:
        server.wait_until_healthy(api)
        dag = server.wait_for_dag(api, "small", since=0.0)
        assert not dag["is_paused"], "a schedule must not need a second step"
        with pytest.raises(ConfigError, match="an unusable config"):
            server.wait_for_dag(api, "broken", since=0.0)
        run_id = api.trigger("small", {})
        assert api.list_active_runs("small") == [run_id], (
            "a daily DAG that is unpaused must not start by itself"
        )
    with (
        AirflowApi(server.url, USER, "wrong") as stranger,
        pytest.raises(ConfigError, match="does not know the user admin with this password"),
    ):
        stranger.log_in()
    connections = [
        entry
        for process in survivors.look()
        for entry in query_process(partial(process.net_connections, "tcp"), gone=[])
    ]
    listening = {entry.laddr.ip for entry in connections if entry.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}
