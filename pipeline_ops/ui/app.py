"""The plugin's pages, by address.

Airflow mounts this application, and its login and permissions decide which user sees which page.
Airflow does not protect a plugin's routes by itself. Every route here names its rule as a
dependency, and a test fails for a route without one. Addresses inside a page are relative, so that
the pages work behind a prefix and a reverse proxy.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse

from pipeline_ops.airflow_internals import DagAccessEntity, SessionDep, requires_access_dag
from pipeline_ops.airflow_runs import NotFound, PipelineRun, find_run
from pipeline_ops.artifacts.dataset import DATA_PAGE
from pipeline_ops.artifacts.manifest import find_file
from pipeline_ops.errors import TrainyardError
from pipeline_ops.jobs.task_record import find_recorded_manifest, find_report
from pipeline_ops.storage.store_options import wait_at_most
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.ui.model_routes import SIGNED_IN
from pipeline_ops.ui.model_routes import router as model_routes
from pipeline_ops.ui.pages import (
    HEADERS,
    IN_PIPELINE,
    SANDBOX,
    SCRIPT,
    STYLE_SHEET,
    render,
    render_icon,
)
from pipeline_ops.ui.progress import view_tasks

app = FastAPI(title="Trainyard", docs_url=None, redoc_url=None, openapi_url=None)
app.include_router(model_routes)

CAN_READ_RUN = Depends(requires_access_dag("GET", DagAccessEntity.RUN))

_PAGES = ("report", "data")
_Page = Literal["report", "data"]
_MAX_PAGE_BYTES = 64 << 20
_STORE_SECONDS = 10
"""How long a page waits for a store that is away."""


@app.middleware("http")
async def set_headers_and_patience(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    with wait_at_most(_STORE_SECONDS):
        response = await call_next(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


@app.exception_handler(TrainyardError)
async def show_problem(request: Request, problem: TrainyardError) -> HTMLResponse:
    depth = (
        len(Path(request.scope["path"].removeprefix(request.scope.get("root_path", ""))).parts) - 2
    )
    response = render("problem.html", "../" * depth, message=str(problem))
    response.status_code = 404 if isinstance(problem, NotFound) else 409
    return response


@app.get("/style.css", dependencies=[SIGNED_IN])
def get_style_sheet() -> Response:
    return Response(STYLE_SHEET, media_type="text/css")


@app.get("/live.js", dependencies=[SIGNED_IN])
def get_script() -> Response:
    return Response(SCRIPT, media_type="text/javascript")


@app.get("/models.svg", dependencies=[SIGNED_IN])
def get_models_icon() -> Response:
    return Response(render_icon("#3f3f46", rim="#ffffff"), media_type="image/svg+xml")


@app.get("/models-dark.svg", dependencies=[SIGNED_IN])
def get_models_icon_dark() -> Response:
    return Response(render_icon("#e4e4e7", rim="#18181b"), media_type="image/svg+xml")


@app.get("/pipelines/{dag_id}/progress", dependencies=[CAN_READ_RUN])
def show_progress(
    dag_id: str, run_id: str, session: SessionDep, task_id: str | None = None
) -> HTMLResponse:
    """Shows a run in progress, or one task of it."""
    run, now = find_run(dag_id, run_id, session), dt.datetime.now(dt.UTC)
    tasks = [task for task in view_tasks(run, now) if task_id in (None, task.name)]
    return render("progress.html", IN_PIPELINE, run=run, tasks=tasks)


@app.get("/pipelines/{dag_id}/report", dependencies=[CAN_READ_RUN])
def show_report(
    dag_id: str, run_id: str, session: SessionDep, page: _Page = "report"
) -> HTMLResponse:
    """Shows the pages that a run has left, in a sandboxed frame."""
    run = find_run(dag_id, run_id, session)
    return render(
        "report.html",
        IN_PIPELINE,
        run=run,
        page=page,
        available_pages=[name for name in _PAGES if _find_page(run, name)],
        query=urlencode({"run_id": run_id}),
    )


@app.get("/pipelines/{dag_id}/report/content", dependencies=[CAN_READ_RUN])
def show_report_content(
    dag_id: str, run_id: str, session: SessionDep, page: _Page = "report"
) -> HTMLResponse:
    """Returns one of those pages as the job has written it."""
    run = find_run(dag_id, run_id, session)
    read = _find_page(run, page)
    if read is None:
        raise NotFound(f"The run {run_id} has no page {page}.")
    return HTMLResponse(read(_MAX_PAGE_BYTES), headers={"Content-Security-Policy": SANDBOX})


def _find_page(run: PipelineRun, page: str) -> Callable[[int], bytes] | None:
    """Finds a page of a run, from the artifacts that the run's tasks have left or found.

    The page of refused data is in the folder of the attempt instead, where files are read as logs.

    Returns:
      A function that reads the page up to a number of bytes. None if there is no page.

    Raises:
      DataError: a record of the run is damaged, or does not name an artifact of the pipeline.
    """

    def read_task_manifest(task: str) -> StorePath | None:
        return find_recorded_manifest(run.layout, run.run_id, task, task)

    if page == "report":
        file = find_report(read_task_manifest("evaluate"), read_task_manifest("export"))
    elif dataset := read_task_manifest("preprocess"):
        file = find_file(dataset, DATA_PAGE)
    elif attempt := run.layout.newest_attempt(run.run_id, "preprocess"):
        refused = attempt.folder / DATA_PAGE
        _, end = refused.read_log_end(1)
        return functools.partial(refused.read_log, 0) if end else None
    else:
        return None
    return run.layout.locate(file).read if file else None
