"""Waits until an embedded Airflow can run a DAG in its present version."""

from __future__ import annotations

import time
from typing import Any

from pipeline_ops.cli.local_airflow.airflow_api import AirflowApi, parse_timestamp
from pipeline_ops.cli.local_airflow.home import AirflowServer
from pipeline_ops.cli.local_airflow.server import check_alive
from pipeline_ops.errors import ConfigError, MachineError

_HEARTBEAT_KEYS = {
    "scheduler": "latest_scheduler_heartbeat",
    "dag_processor": "latest_dag_processor_heartbeat",
    "triggerer": "latest_triggerer_heartbeat",
}
_POLL_SECONDS = 0.1
_READY_SECONDS = 180.0
_BROKEN_CONFIGS_FILE = "trainyard_broken.py"
"""The DAG file whose import error lists broken pipelines. It does not affect valid pipelines."""


def wait_until_healthy(api: AirflowApi, server: AirflowServer) -> None:
    """Waits until every program has sent a heartbeat since this start.

    A stopped program looks healthy for half a minute.

    Raises:
      MachineError: one of them has died, or the timeout has passed.
    """
    api.warm_up()
    api.log_in()
    deadline = time.monotonic() + _READY_SECONDS
    while missing := _list_unhealthy(api.health(), server.started):
        _pause(server, deadline, f"no heartbeat from {', '.join(missing)}")


def wait_for_dag(api: AirflowApi, server: AirflowServer, dag: str, since: float) -> dict[str, Any]:
    """Waits until Airflow has read the DAG after `since` (seconds since 1970).

    Returns:
      The DAG as the API describes it.

    Raises:
      ConfigError: the DAG file cannot be imported. The message is Airflow's.
      MachineError: the timeout has passed.
    """
    parse_requested, deadline = False, time.monotonic() + _READY_SECONDS
    changed, since = since > server.started, max(since, server.started)
    while True:
        found = api.dag(dag)
        parsed = found and found["last_parsed_time"]
        if found and parsed and parse_timestamp(parsed) >= since:
            return found
        if found and changed and not parse_requested:
            api.request_parse(found["file_token"])
            parse_requested = True
        if errors := api.list_import_errors(since, exclude=_BROKEN_CONFIGS_FILE):
            raise ConfigError("Airflow cannot import the DAG file:\n" + "\n".join(errors))
        _pause(server, deadline, f"Airflow does not list the DAG {dag}")


def _pause(server: AirflowServer, deadline: float, problem: str) -> None:
    """Sleeps between two polls. Raises MachineError if the server is down or time is up."""
    check_alive(server)
    if time.monotonic() > deadline:
        raise MachineError(
            f"{problem} after {_READY_SECONDS:.0f} s. See the logs in {server.home.logs}."
        )
    time.sleep(_POLL_SECONDS)


def _list_unhealthy(health: dict[str, dict[str, Any]], since: float) -> list[str]:
    return [
        name
        for name, heartbeat_key in _HEARTBEAT_KEYS.items()
        if health[name]["status"] != "healthy"
        or parse_timestamp(health[name][heartbeat_key]) < since
    ]
