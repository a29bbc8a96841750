"""The parts of Airflow outside its public interface that the pages and the orphan reaper use.

Any release of Airflow may move or change them, so no other module imports them. Only the API server
imports this module, when it loads the plugin: the imports are expensive elsewhere.
"""

from __future__ import annotations

from importlib.metadata import version

from pipeline_ops.errors import ConfigError

TESTED = "3.3"
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
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
except ImportError as error:
    raise ConfigError(
        f"Airflow {version('apache-airflow')} lacks a part that Trainyard's pages and its orphan "
        f"reaper need ({error}). Trainyard is tested with Airflow {TESTED}. Install it: "
        f"pip install 'apache-airflow=={TESTED}.*'"
    ) from error

__all__ = [
    "BaseUser",
    "DagAccessEntity",
    "DagDetails",
    "DagModel",
    "DagRun",
    "DagTag",
    "GetUserDep",
    "Log",
    "SerializedDagModel",
    "SessionDep",
    "TaskInstance",
    "TaskStateStoreModel",
    "create_session",
    "get_auth_manager",
    "requires_access_dag",
    "requires_authenticated",
]
