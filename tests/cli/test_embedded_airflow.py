"""A real embedded Airflow on a small DAG folder, from an empty home to its end."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import psutil
import pytest
from held_airflow import HOLDER, hold_airflow
from processes import query_process
from small_disks import mount_small_disk

from pipeline_ops.cli.airflow_access import USER
from pipeline_ops.cli.airflow_api import AirflowApi
from pipeline_ops.cli.embedded_airflow import AirflowServer
from pipeline_ops.errors import ConfigError, ExitCode, TrainyardError

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


def test_a_full_disk_is_named_before_the_start(tmp_path, survivors):
    with mount_small_disk(tmp_path / "disk", "size=4m") as disk:
        command = [sys.executable, HOLDER, disk / "new" / "home", "/configs/a.yaml"]
        done = subprocess.run(command, env=survivors.environment, capture_output=True, text=True)
        assert done.returncode == ExitCode.RETRY
        assert done.stdout.startswith(f"error the disk of {disk / 'new' / 'home'} is full. Free ")
        assert list(disk.iterdir()) == []


def test_a_disk_that_is_full_when_a_program_ends_is_named_first(tmp_path, survivors):
    with mount_small_disk(tmp_path / "disk", "size=24m,mode=700") as home:
        (home / "small.py").write_text(_DAG)
        holder = subprocess.Popen(
            [sys.executable, HOLDER, home, "/configs/a.yaml"],
            env=survivors.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert [holder.stdout.readline()[:3] for _ in range(2)] == ["Sta", "up "]
        with contextlib.suppress(OSError), open(home / "filling", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        answer = "alive"
        while answer.startswith("alive"):
            time.sleep(1)
            print(file=holder.stdin, flush=True)
            answer = holder.stdout.readline()
        assert answer.startswith(f"error the disk of {home} is full. Free "), answer
        assert "of the embedded Airflow ended with exit status" in holder.stdout.readline()
        assert holder.wait(timeout=60) == ExitCode.RETRY
        assert survivors.look() == []


def test_users_have_their_roles_and_another_command_cannot_change_them(tmp_path, survivors):
    (tmp_path / "small.py").write_text(_DAG)
    options = ["--users=vera:viewer,anna:op"]
    with hold_airflow(tmp_path, "/configs/a.yaml", survivors.environment, *options) as server:
        for name, may_trigger in (("vera", False), ("anna", True)):
            with AirflowApi(server.url, name, server.passwords[name]) as api:
                api.log_in()
                server.wait_for_dag(api, "small", since=0.0)
                if may_trigger:
                    assert api.trigger("small", {})
                else:
                    with pytest.raises(TrainyardError, match="403"):
                        api.trigger("small", {})
        command = [sys.executable, HOLDER, "--users=vera:admin", tmp_path, "/configs/a.yaml"]
        other = subprocess.run(command, env=survivors.environment, capture_output=True, text=True)
        assert other.returncode == ExitCode.RETRY
        assert "with another address or other users. Stop it first." in other.stdout
