"""Connections of Airflow as credentials of a bucket, in each program that runs our code.

These are tasks, the triggerer, the API server and the terminal.
"""

from __future__ import annotations

from typing import Any

from pipeline_ops.storage.store_options import set_connection_reader


def use_airflow_connections() -> None:
    """Lets this process read `storage.connection`."""
    set_connection_reader(_read_connection)


def _read_connection(connection_id: str) -> Any:
    from airflow.sdk import Connection  # here, because the terminal needs it rarely

    return Connection.get(connection_id)
