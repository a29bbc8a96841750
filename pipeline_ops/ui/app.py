"""The plugin's pages, by address.

Airflow mounts this application, and its login and permissions decide which user sees which page.
Airflow does not protect a plugin's routes by itself. Every route here names its rule as a
dependency, and a test fails for a route without one. Addresses inside a page are relative, so that
the pages work behind a prefix and a reverse proxy.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode, urlparse

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import (
    GetUserDep,
    requires_access_dag,
    requires_authenticated,
)
from airflow.configuration import conf
from airflow.models.log import Log
from fastapi import Depends, FastAPI, Form, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from pipeline_ops.airflow_runs import NotFound, PipelineRun, find_pipeline, find_pipelines, find_run
from pipeline_ops.artifacts.dataset import DATA_PAGE
from pipeline_ops.errors import TrainyardError
from pipeline_ops.jobs.task_record import find_report, recorded_manifest
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.safe_paths import read_below
from pipeline_ops.ui.models import ModelView, view_model
from pipeline_ops.ui.pages import HEADERS, SANDBOX, SCRIPT, STYLE_SHEET, icon, render
from pipeline_ops.ui.progress import view_tasks

app = FastAPI(title="Trainyard", docs_url=None, redoc_url=None, openapi_url=None)

SIGNED_IN = Depends(requires_authenticated())
READS_THE_RUN = Depends(requires_access_dag("GET", DagAccessEntity.RUN))
READS_THE_PIPELINE = Depends(requires_access_dag("GET"))
CHANGES_THE_PIPELINE = Depends(requires_access_dag("PUT"))
"""A user who may pause a pipeline may also choose the model version that is in service."""

_PAGES = ("report", "data")
_Page = Literal["report", "data"]
_IN_PIPELINE = "../../"
_MAX_REASON = 500
_MAX_PAGE_BYTES = 64 << 20


@app.middleware("http")
async def say_what_browsers_may_do(
    request: Request, answer: Callable[[Request], Awaitable[Response]]
) -> Response:
    response = await answer(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


@app.exception_handler(TrainyardError)
async def show_problem(request: Request, problem: TrainyardError) -> HTMLResponse:
    depth = (
        len(Path(request.scope["path"].removeprefix(request.scope.get("root_path", ""))).parts) - 2
    )
    return HTMLResponse(
        render("problem.html", "../" * depth, message=str(problem)),
        status_code=404 if isinstance(problem, NotFound) else 409,
    )


@app.get("/style.css", dependencies=[SIGNED_IN])
def style_sheet() -> Response:
    return Response(STYLE_SHEET, media_type="text/css")


@app.get("/live.js", dependencies=[SIGNED_IN])
def script() -> Response:
    return Response(SCRIPT, media_type="text/javascript")


@app.get("/models.svg", dependencies=[SIGNED_IN])
def models_icon() -> Response:
    return Response(icon("#3f3f46", rim="#ffffff"), media_type="image/svg+xml")


@app.get("/models-dark.svg", dependencies=[SIGNED_IN])
def models_icon_for_the_dark() -> Response:
    return Response(icon("#e4e4e7", rim="#18181b"), media_type="image/svg+xml")


@app.get("/pipelines/{dag_id}/progress", dependencies=[READS_THE_RUN])
def progress(
    dag_id: str, run_id: str, session: SessionDep, task_id: str | None = None
) -> HTMLResponse:
    """A run in progress, or one task of it."""
    run, now = find_run(dag_id, run_id, session), dt.datetime.now(dt.UTC)
    tasks = [task for task in view_tasks(run, now) if task_id in (None, task.name)]
    return HTMLResponse(
        render(
            "progress.html",
            _IN_PIPELINE,
            run=run,
            tasks=tasks,
            now=now.timestamp(),
            is_whole_run=task_id is None,
        )
    )


@app.get("/pipelines/{dag_id}/report", dependencies=[READS_THE_RUN])
def report(dag_id: str, run_id: str, session: SessionDep, page: _Page = "report") -> HTMLResponse:
    """The pages that a run has left, in a sandboxed frame."""
    run = find_run(dag_id, run_id, session)
    there = [name for name in _PAGES if _file_of(run, name)]
    address = urlencode({"run_id": run_id, "page": page})
    return HTMLResponse(
        render(
            "report.html",
            _IN_PIPELINE,
            run=run,
            page=page,
            there=there,
            address=address,
            query=urlencode({"run_id": run_id}),
        )
    )


@app.get("/pipelines/{dag_id}/report/content", dependencies=[READS_THE_RUN])
def report_content(
    dag_id: str, run_id: str, session: SessionDep, page: _Page = "report"
) -> HTMLResponse:
    """One of those pages as the job has written it."""
    run = find_run(dag_id, run_id, session)
    file = _file_of(run, page)
    if file is None:
        raise NotFound(f"The run {run_id} has left no such page.")
    content = read_below(run.layout.root, str(file.relative_to(run.layout.root)), _MAX_PAGE_BYTES)
    return HTMLResponse(content, headers={"Content-Security-Policy": SANDBOX})


@app.get("/models", dependencies=[SIGNED_IN])
def models(user: GetUserDep, session: SessionDep) -> HTMLResponse:
    """The models of all pipelines that the user may read."""
    dag_ids = find_pipelines(
        get_auth_manager().get_authorized_dag_ids(user=user, session=session), session
    )
    found = [(dag_id, *_model_or_problem(dag_id, session)) for dag_id in dag_ids]
    return HTMLResponse(
        render("models.html", "", pipelines=[entry for entry in found if entry[1] or entry[2]])
    )


@app.get("/pipelines/{dag_id}/models", dependencies=[READS_THE_PIPELINE])
def model(dag_id: str, user: GetUserDep, session: SessionDep, done: str = "") -> HTMLResponse:
    """The versions of a pipeline's model."""
    view = view_model(find_pipeline(dag_id, session))
    may_change = get_auth_manager().is_authorized_dag(
        method="PUT", details=DagDetails(id=dag_id), user=user
    )
    return HTMLResponse(
        render(
            "model.html", _IN_PIPELINE, dag_id=dag_id, model=view, may_change=may_change, done=done
        )
    )


def refuse_other_sites(request: Request) -> None:
    """Rejects a form that does not come from a page of this Airflow.

    The browser sends the session's cookie along from any site. A program with its token in a header
    needs no page.
    """
    site, origin = (
        request.headers.get("sec-fetch-site"),
        urlparse(request.headers.get("origin", "")).netloc,
    )
    ours = {request.headers.get("host"), urlparse(conf.get("api", "base_url", fallback="")).netloc}
    is_ours = (
        site == "same-origin" if site else origin != "" and origin in ours
    )  # a sandboxed page has the origin "null", which has no host
    if not is_ours and "authorization" not in request.headers:
        raise HTTPException(403, "This form was not sent from a page of this Airflow.")


_Reason = Annotated[str, Form(max_length=_MAX_REASON)]


@app.post(
    "/pipelines/{dag_id}/models/promote",
    dependencies=[CHANGES_THE_PIPELINE, Depends(refuse_other_sites)],
)
def promote(
    dag_id: str,
    version: Annotated[int, Form()],
    user: GetUserDep,
    session: SessionDep,
    expected: Annotated[str, Form()] = "",
    reason: _Reason = "",
) -> RedirectResponse:
    """Puts a version in service, in place of the one that the user has seen there."""
    registry = Registry(find_pipeline(dag_id, session).registry)
    registry.promote(version, _signed(reason, user), expected=_as_number(expected))
    return _done(dag_id, user, session, "promote", version)


@app.post(
    "/pipelines/{dag_id}/models/rollback",
    dependencies=[CHANGES_THE_PIPELINE, Depends(refuse_other_sites)],
)
def roll_back(
    dag_id: str,
    user: GetUserDep,
    session: SessionDep,
    expected: Annotated[str, Form()],
    reason: _Reason = "",
) -> RedirectResponse:
    """Puts the previous champion back in service."""
    registry = Registry(find_pipeline(dag_id, session).registry)
    previous = registry.previous()
    if previous is None:
        raise NotFound(
            "There is no earlier champion to go back to; "
            "put another version in service by its number."
        )
    registry.promote(
        previous.number,
        f"rolled back from version {expected}: {_signed(reason, user)}",
        expected=_as_number(expected),
    )
    return _done(dag_id, user, session, "rollback", previous.number)


def _as_number(expected: str) -> int | None:
    """Parses the number of the version in service; None if there was none."""
    if expected and not expected.isdecimal():
        raise HTTPException(
            422, "expected must be the number of the version in service, or nothing"
        )
    return int(expected) if expected else None


def _signed(reason: str, user: Any) -> str:
    return f"{reason.strip() or 'by hand'} ({user.get_name()}, in the UI)"


def _done(
    dag_id: str, user: Any, session: SessionDep, event: str, version: int
) -> RedirectResponse:
    """Writes the event into Airflow's audit log and redirects to the page."""
    session.add(
        Log(
            f"trainyard_{event}",
            owner=user.get_name(),
            dag_id=dag_id,
            extra=json.dumps({"version": version}),
        )
    )
    return RedirectResponse(
        "../models?" + urlencode({"done": f"Version {version} is in service."}), status_code=303
    )


def _model_or_problem(dag_id: str, session: SessionDep) -> tuple[ModelView | None, str]:
    """The model of a pipeline, or the problem with it.

    A registry that cannot be read must not hide the others. For a DAG of ours that is not a
    pipeline, there is neither.
    """
    try:
        return view_model(find_pipeline(dag_id, session)), ""
    except NotFound:
        return None, ""
    except (TrainyardError, OSError) as problem:
        return None, str(problem)


def _file_of(run: PipelineRun, page: str) -> Path | None:
    """A page of a run, from the artifacts that the run's tasks have left or found.

    Raises:
      DataError: a record of the run is damaged, or names something else than an artifact of the
        pipeline.
    """

    def manifest_of(task: str) -> str | None:
        return recorded_manifest(run.layout, run.run_id, task, task)

    if page == "report":
        return find_report(manifest_of("evaluate"), manifest_of("export"))
    dataset = manifest_of("preprocess")
    file = Path(dataset).parent / DATA_PAGE if dataset else None
    return file if file and file.is_file() else None
