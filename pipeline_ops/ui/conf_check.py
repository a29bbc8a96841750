"""Rejects a run with a forbidden conf when it is triggered, before its first task.

Airflow checks a conf against the fields of the form one by one, and accepts any other key. Its API
server makes a `DagRun` of every request: from the form, from a client, for an asset event, for a
backfill. It answers a ValueError there with its text. The tasks check the conf again, so this check
is for comfort and not for safety.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import event

from pipeline_ops.airflow_internals import DagRun, create_session
from pipeline_ops.airflow_runs import NotFound, find_config_file
from pipeline_ops.config.run_conf import load_run_config
from pipeline_ops.errors import ConfigError


def install() -> None:
    """Installs the check in the API server. A second call has no effect."""
    if not event.contains(DagRun, "init", check_conf):
        event.listen(DagRun, "init", check_conf)


def check_conf(_: DagRun, arguments: Sequence[Any], values: Mapping[str, Any]) -> None:
    """Called before a run is made. Raises ValueError for a conf that the pipeline forbids."""
    conf, dag_id = values.get("conf"), values.get("dag_id")
    if not conf or not isinstance(dag_id, str):
        return
    try:
        with create_session() as session:
            file = find_config_file(dag_id, session)
    except NotFound:  # a DAG of another project
        return
    try:
        load_run_config(file, conf)
    except ConfigError as error:
        raise ValueError(str(error)) from None
