"""The Airflow plugin behind the entry point `airflow.plugins`.

Its pages are tabs of a run and of a task, and an entry of the navigation. Airflow puts each of them
into an iframe. The addresses are relative, so that they follow an Airflow behind a prefix. Every
process of Airflow imports this file, each task among them, so it imports only the base class. The
pages are imported with their first request.
"""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

_PREFIX = "trainyard"
_RUN = f"{_PREFIX}/pipelines/{{DAG_ID}}"


async def pages(scope, receive, send) -> None:
    """The application of `app.py`, in the API server."""
    from pipeline_ops.ui.app import app

    await app(scope, receive, send)


class WithCustodian:
    """Starts the orphan reaper and the check of confs together with the API server.

    Airflow has no other hook that is called only there.
    """

    def __init__(self, app):
        self._app = app

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            from pipeline_ops.reaper import orphan_reaper as custodian
            from pipeline_ops.ui import conf_check

            custodian.start()
            conf_check.start()
        await self._app(scope, receive, send)


class TrainyardPlugin(AirflowPlugin):
    name = "trainyard"
    fastapi_apps = [{"app": pages, "url_prefix": f"/{_PREFIX}", "name": "Trainyard"}]
    fastapi_root_middlewares = [
        {"middleware": WithCustodian, "args": [], "kwargs": {}, "name": "Trainyard's custodian"}
    ]
    external_views = [
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
