"""The parts of Airflow's API server outside its public interface that the pages use.

Any release of Airflow may move or change them, so no other module imports them. Only the API server
imports this module, when it loads the plugin: the imports are expensive elsewhere.
"""

from __future__ import annotations

from pipeline_ops.orchestration.airflow_models import make_missing_error

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
except ImportError as error:
    raise make_missing_error(error) from error

__all__ = [
    "BaseUser",
    "DagAccessEntity",
    "DagDetails",
    "GetUserDep",
    "SessionDep",
    "get_auth_manager",
    "requires_access_dag",
    "requires_authenticated",
]
