"""Refuses a run with a conf that it may not have, when it is triggered, and not only in its first task.

Airflow checks a conf against the fields of the form one by one, and takes any other key. Its API server makes a `DagRun` of
every request: from the form, from a client, of an asset, of a backfill. A ValueError there is answered with its text. The
tasks check the conf again, so this is a matter of comfort and not of safety.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sqlalchemy import event

from pipeline_ops.airflow_runs import NotFound, find_config_file
from pipeline_ops.config.run_config import run_config
from pipeline_ops.errors import ConfigError


def start() -> None:
    """For the API server, once."""
    if not event.contains(DagRun, "init", refuse):
        event.listen(DagRun, "init", refuse)


def refuse(_: DagRun, arguments: Sequence[Any], values: Mapping[str, Any]) -> None:
    """Called before a run is made. Raises ValueError for a conf that its pipeline does not allow."""
    conf, dag_id = values.get("conf"), values.get("dag_id")
    if not conf or not isinstance(dag_id, str):
        return
    try:
        with create_session() as session:
            file = find_config_file(dag_id, session)
    except NotFound:  # another's DAG
        return
    try:
        run_config(file, conf, values.get("run_id"))
    except ConfigError as error:
        raise ValueError(str(error)) from None
