"""Waits until an embedded Airflow can run a DAG in its present version."""

from __future__ import annotations

import time
from typing import Any

from pipeline_ops.cli.local_airflow.airflow_api import AirflowApi, seconds_since_1970
from pipeline_ops.cli.local_airflow.embedded import AirflowServer, Home
from pipeline_ops.cli.local_airflow.server import check_alive
from pipeline_ops.errors import ConfigError, MachineError

_PROGRAMS = {
    "scheduler": "latest_scheduler_heartbeat",
    "dag_processor": "latest_dag_processor_heartbeat",
    "triggerer": "latest_triggerer_heartbeat",
}
_POLL_SECONDS = 0.1
_READY_SECONDS = 180.0
_REPORT = "trainyard_broken.py"
"""The DAG file whose import error lists broken pipelines. It does not concern the others."""


def wait_until_healthy(api: AirflowApi, home: Home, server: AirflowServer) -> None:
    """Waits until every program has sent a heartbeat since this start.

    A stopped program looks healthy for half a minute.

    Raises:
      MachineError: one of them has died, or the time is up.
    """
    api.warm_up()
    api.log_in()
    deadline = time.monotonic() + _READY_SECONDS
    while missing := _not_healthy(api.health(), server.started):
        check_alive(home, server)
        if time.monotonic() > deadline:
            raise MachineError(
                f"no sign of life of {', '.join(missing)} after {_READY_SECONDS:.0f} s; "
                f"the logs are in {home.log('').parent}"
            )
        time.sleep(_POLL_SECONDS)


def wait_for_dag(
    api: AirflowApi, home: Home, server: AirflowServer, dag: str, since: float
) -> dict[str, Any]:
    """Waits until Airflow has read the DAG after `since` (seconds since 1970).

    Returns:
      The DAG as the API describes it.

    Raises:
      ConfigError: the DAG file cannot be imported. The message is Airflow's.
      MachineError: the time is up.
    """
    asked, deadline = False, time.monotonic() + _READY_SECONDS
    while True:
        found = api.dag(dag)
        if (
            found
            and found["last_parsed_time"]
            and seconds_since_1970(found["last_parsed_time"]) >= max(since, server.started)
        ):
            return found
        if found and server.started < since and not asked:
            api.parse_again(found["file_token"])
            asked = True
        if errors := api.import_errors(since=max(since, server.started), without=_REPORT):
            raise ConfigError("Airflow can't read the DAG file:\n" + "\n".join(errors))
        check_alive(home, server)
        if time.monotonic() > deadline:
            raise MachineError(
                f"Airflow does not list the DAG {dag} after {_READY_SECONDS:.0f} s; "
                f"the logs are in {home.log('').parent}"
            )
        time.sleep(_POLL_SECONDS)


def _not_healthy(health: dict[str, dict[str, Any]], since: float) -> list[str]:
    return [
        name
        for name, beat in _PROGRAMS.items()
        if health[name]["status"] != "healthy" or seconds_since_1970(health[name][beat]) < since
    ]
