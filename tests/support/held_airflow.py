"""A real embedded Airflow for tests, held by a process that ends it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pipeline_ops.cli.airflow_access import USER
from pipeline_ops.cli.airflow_api import AirflowApi
from pipeline_ops.cli.embedded_airflow import AirflowHome, AirflowServer

HOLDER = Path(__file__).parents[1] / "cli" / "holder.py"


@contextlib.contextmanager
def hold_airflow(
    home: Path, config: object, environment: Mapping[str, str], *options: str
) -> Iterator[AirflowServer]:
    """Keeps an Airflow up that reads the DAG files in its home. `options` are those of HOLDER."""
    process = subprocess.Popen(
        [sys.executable, HOLDER, *options, home, str(config)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = [process.stdout.readline() for _ in range(2)]
    assert lines[1].startswith("up "), lines
    yield AirflowServer.find_running(AirflowHome(home))
    process.communicate(timeout=60)


@contextlib.contextmanager
def run_airflow(
    home: Path,
    config: Path,
    dag_ids: Iterable[str],
    environment: Mapping[str, str],
    *options: str,
) -> Iterator[AirflowApi]:
    """Holds an Airflow as `hold_airflow` does. Its DAGs are parsed and unpaused."""
    with (
        hold_airflow(home, config, environment, *options) as server,
        AirflowApi(server.url, USER, server.password) as api,
    ):
        server.wait_until_healthy(api)
        for dag_id in dag_ids:
            server.wait_for_dag(api, dag_id, since=0.0)
            api.pause(dag_id, paused=False)
        yield api
