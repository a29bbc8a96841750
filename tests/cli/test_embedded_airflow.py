"""A real embedded Airflow on a small DAG folder: from an empty home to a listed DAG,
and back to nothing."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
from processes import ask

from pipeline_ops.cli.local_airflow.airflow_api import AirflowApi
from pipeline_ops.cli.local_airflow.embedded import USER, AirflowServer, Home
from pipeline_ops.cli.local_airflow.ready import wait_for_dag, wait_until_healthy
from pipeline_ops.errors import ConfigError, MachineError

_DAG = """
import datetime as dt
from airflow.sdk import DAG, task
with DAG("small", schedule="@daily", start_date=dt.datetime(2024, 1, 1), catchup=False):
    @task
    def only(): ...
    only()
"""


@pytest.fixture
def home(tmp_path, survivors):
    """The home of an Airflow that runs while the test does;
    afterwards nothing of it may be left."""
    (tmp_path / "small.py").write_text(_DAG)
    (tmp_path / "broken.py").write_text(
        "from airflow.sdk import DAG\nraise RuntimeError('a config that nobody can use')\n"
    )
    argv = [
        sys.executable,
        str(Path(__file__).parent / "holder.py"),
        str(tmp_path),
        "/configs/a.yaml",
    ]
    holder = subprocess.Popen(
        argv, env=survivors.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    lines = [holder.stdout.readline() for _ in range(2)]
    assert lines[1].startswith("up "), lines
    yield Home(tmp_path)
    assert len(survivors.look()) >= 10  # the supervisor, four programs, four workers, and this one
    holder.communicate(timeout=60)
    assert survivors.look() == []


def test_a_home_of_its_own_on_loopback_only_without_schedules(home, survivors):
    server = AirflowServer.alive(home)
    with AirflowApi(server.url, USER, server.password) as api:
        wait_until_healthy(api, home, server)
        dag = wait_for_dag(api, home, server, "small", since=0.0)
        assert not dag["is_paused"], "a schedule must not need a second step"
        with pytest.raises(ConfigError, match="a config that nobody can use"):
            wait_for_dag(api, home, server, "broken", since=0.0)
        run_id = api.trigger("small", {})
        assert api.active_runs("small") == [run_id], (
            "a daily DAG that is unpaused must not start by itself"
        )
    with (
        AirflowApi(server.url, USER, "wrong") as stranger,
        pytest.raises(MachineError, match="refuses POST /auth/token"),
    ):
        stranger.log_in()
    connections = [
        entry
        for process in survivors.look()
        for entry in ask(partial(process.net_connections, "tcp"), gone=[])
    ]
    listening = {entry.laddr.ip for entry in connections if entry.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}
