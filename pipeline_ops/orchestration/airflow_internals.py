"""The parts of Airflow outside its public interface that the pages and the orphan reaper use.

Any release of Airflow may move or change them, so no other module imports them. Only the API server
imports this module, when it loads the plugin: the imports are expensive elsewhere.
"""

from __future__ import annotations

from airflow import __version__

from pipeline_ops.errors import ConfigError

TESTED = ("3.2", "3.3")
"""The releases of Airflow that this package is tested with, as in `pyproject.toml`."""

try:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
    from airflow.api_fastapi.auth.managers.models.resource_details import (
        DagAccessEntity,
        DagDetails,
    )
    from airflow.api_fastapi.common.db.common import SessionDep
    from airflow.api_fastapi.core_api.security import (
        GetUserDep,
        requires_access_dag,
        requires_authenticated,
    )
    from airflow.models.dag import DagModel, DagTag
    from airflow.models.dagrun import DagRun
    from airflow.models.log import Log
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    if __version__.startswith("3.2."):
        JobEntry = XComModel  # see `orchestration/task_run.py`
    else:
        from airflow.models.task_state_store import TaskStateStoreModel as JobEntry
except ImportError as error:
    raise ConfigError(
        f"Airflow {__version__} lacks a part that Trainyard's pages and its orphan reaper need "
        f"({error}). Trainyard is tested with Airflow {' and '.join(TESTED)}. Install one of them: "
        f"pip install 'apache-airflow=={TESTED[-1]}.*'"
    ) from error

__all__ = [
    "BaseUser",
    "DagAccessEntity",
    "DagDetails",
    "DagModel",
    "DagRun",
    "DagTag",
    "GetUserDep",
    "JobEntry",
    "Log",
    "SerializedDagModel",
    "SessionDep",
    "TaskInstance",
    "XComModel",
    "create_session",
    "get_auth_manager",
    "requires_access_dag",
    "requires_authenticated",
]
