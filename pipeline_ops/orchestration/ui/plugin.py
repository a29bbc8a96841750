"""The Airflow plugin behind the entry point `airflow.plugins`.

Its pages are tabs of a run and of a task, and an entry of the navigation, each in an iframe. The
addresses are relative, so that they follow an Airflow behind a prefix. Every process of Airflow
imports this file, so it imports the pages only with their first request.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

import pipeline_ops.orchestration.run_note as run_note

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_API_SERVER = "airflow.api_fastapi.app"
"""A module of Airflow that the API server has imported when it loads plugins."""
_PREFIX = "trainyard"
_RUN = f"{_PREFIX}/pipelines/{{DAG_ID}}"


async def serve_pages(scope: Scope, receive: Receive, send: Send) -> None:
    """The application of `app.py`, in the API server."""
    from pipeline_ops.orchestration.ui.app import app

    await app(scope, receive, send)


class BackgroundServices:
    """Starts the orphan reaper with the API server. Airflow has no other hook for it."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            from pipeline_ops.orchestration.orphan_reaper import start

            start()
        await self._app(scope, receive, send)


class TrainyardPlugin(AirflowPlugin):
    name = "trainyard"
    fastapi_apps = [{"app": serve_pages, "url_prefix": f"/{_PREFIX}", "name": "Trainyard"}]
    fastapi_root_middlewares = [
        {
            "middleware": BackgroundServices,
            "args": [],
            "kwargs": {},
            "name": "Trainyard's background services",
        }
    ]
    external_views = [
        {
            "name": "Outcomes",
            "href": f"{_RUN}/runs",
            "destination": "dag",
            "url_route": "trainyard_outcomes",
        },
        {
            "name": "Model",
            "href": f"{_RUN}/models",
            "destination": "dag",
            "url_route": "trainyard_model",
        },
        {
            "name": "Data",
            "href": f"{_RUN}/data",
            "destination": "dag",
            "url_route": "trainyard_data",
        },
        {
            "name": "Progress",
            "href": f"{_RUN}/progress?run_id={{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "trainyard_progress",
        },
        {
            "name": "Report",
            "href": f"{_RUN}/report?run_id={{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "trainyard_report",
        },
        {
            "name": "Progress",
            "href": f"{_RUN}/progress?run_id={{RUN_ID}}&task_id={{TASK_ID}}",
            "destination": "task_instance",
            "url_route": "trainyard_task_progress",
        },
        {
            "name": "Models",
            "href": f"{_PREFIX}/models",
            "destination": "nav",
            "url_route": "trainyard_models",
            "nav_top_level": True,
            "icon": f"{_PREFIX}/models.svg",
            "icon_dark_mode": f"{_PREFIX}/models-dark.svg",
        },
    ]

    listeners = [run_note]

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        """Raises ConfigError in an API server that lacks what the pages import from Airflow.

        Airflow lists it among the import errors of plugins.
        """
        if _API_SERVER in sys.modules:
            import pipeline_ops.orchestration.airflow_internals  # noqa: F401
