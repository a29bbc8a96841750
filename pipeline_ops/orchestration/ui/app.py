"""The plugin's pages, by address, and the forms that change the aliases of a model.

Airflow mounts this application and does not protect its routes. So every route has a dependency on
Airflow's login or permissions, and a test fails for a route without one. Addresses inside a page
are relative, so that the pages work behind a prefix and a reverse proxy.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode, urlparse

from airflow.configuration import conf
from fastapi import Cookie, Depends, FastAPI, Form, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse

from pipeline_ops.contract.outcome import Kind
from pipeline_ops.contract.results import ANSWERS
from pipeline_ops.contract.task_record import find_recorded_manifest, find_report
from pipeline_ops.contract.thresholds import NUM_THRESHOLDS
from pipeline_ops.errors import DataError, TrainyardError
from pipeline_ops.orchestration.airflow_internals import (
    BaseUser,
    DagAccessEntity,
    DagDetails,
    GetUserDep,
    SessionDep,
    get_auth_manager,
    requires_access_dag,
    requires_authenticated,
)
from pipeline_ops.orchestration.airflow_models import Log
from pipeline_ops.orchestration.airflow_runs import (
    NotFound,
    PipelineRun,
    find_pipeline,
    find_pipelines,
    find_run,
)
from pipeline_ops.orchestration.ui.data import (
    find_data_page,
    find_rejected,
    format_rejected,
    view_data,
)
from pipeline_ops.orchestration.ui.failure import read_job_file, view_failure
from pipeline_ops.orchestration.ui.head import view_head
from pipeline_ops.orchestration.ui.model_change import Action, plan_change
from pipeline_ops.orchestration.ui.model_list import view_models
from pipeline_ops.orchestration.ui.models import view_model
from pipeline_ops.orchestration.ui.overlay import MAX_OVERLAID, view_overlay
from pipeline_ops.orchestration.ui.own import find_own_page
from pipeline_ops.orchestration.ui.pages import (
    FILES,
    FORCED_THEMES,
    HEADERS,
    IN_PIPELINE,
    SANDBOX,
    render,
)
from pipeline_ops.orchestration.ui.predictions import Shown, view_predictions
from pipeline_ops.orchestration.ui.progress import view_tasks
from pipeline_ops.orchestration.ui.runs import (
    LEGEND,
    SPAN,
    WORDS,
    RunsQuery,
    view_runs,
)
from pipeline_ops.orchestration.ui.thresholds import (
    find_evaluation_file,
    read_counts,
    view_thresholds,
)
from pipeline_ops.registry.aliases import PREVIOUS
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.store_options import wait_at_most
from pipeline_ops.storage.store_path import StorePath

app = FastAPI(title="Trainyard", docs_url=None, redoc_url=None, openapi_url=None)

SIGNED_IN = Depends(requires_authenticated())
CAN_READ_PIPELINE = Depends(requires_access_dag("GET"))
CAN_EDIT_PIPELINE = Depends(requires_access_dag("PUT"))
"""A user who may pause a pipeline may also choose the model version that is in service."""

_MAX_REASON = 500
_NUMBER = re.compile("[0-9]{1,10}")


@app.get("/models", dependencies=[SIGNED_IN])
def show_models(user: GetUserDep, session: SessionDep) -> HTMLResponse:
    """Shows the models of all pipelines that the user may read."""
    dag_ids = find_pipelines(
        get_auth_manager().get_authorized_dag_ids(user=user, session=session), session
    )

    def may_read_runs(dag_id: str) -> bool:
        return get_auth_manager().is_authorized_dag(
            method="GET",
            access_entity=DagAccessEntity.RUN,
            details=DagDetails(id=dag_id),
            user=user,
        )

    return render("models.html", "", models=view_models(dag_ids, session, may_read_runs))


@app.get("/pipelines/{dag_id}/models", dependencies=[CAN_READ_PIPELINE])
def show_model(
    dag_id: str,
    user: GetUserDep,
    session: SessionDep,
    page: Annotated[int, Query(ge=0)] = 0,
    done: str = "",
) -> HTMLResponse:
    """Shows the versions of a pipeline's model."""
    view = view_model(find_pipeline(dag_id, session), page)
    may_change = get_auth_manager().is_authorized_dag(
        method="PUT", details=DagDetails(id=dag_id), user=user
    )
    return render(
        "model.html",
        IN_PIPELINE,
        dag_id=dag_id,
        model=view,
        page=page,
        may_change=may_change,
        done=done,
    )


@app.get("/pipelines/{dag_id}/models/change", dependencies=[CAN_EDIT_PIPELINE])
def show_change(
    dag_id: str,
    session: SessionDep,
    action: Action,
    version: int | None = None,
    alias: Annotated[str, Query(max_length=100)] = "",
) -> HTMLResponse:
    """Shows what a change would do, and asks for the reason."""
    change = plan_change(find_pipeline(dag_id, session), action, version, alias.strip())
    return render("model_change.html", f"{IN_PIPELINE}../", dag_id=dag_id, change=change)


def check_same_origin(request: Request) -> None:
    """Rejects a form that another site sends with the session's cookie.

    A program sends its token in a header instead.
    """
    if "authorization" in request.headers:
        return
    site = request.headers.get("sec-fetch-site")
    # A sandboxed page has the origin "null", which has no host.
    origin = urlparse(request.headers.get("origin", "")).netloc
    ours = {request.headers.get("host"), urlparse(conf.get("api", "base_url", fallback="")).netloc}
    is_ours = site == "same-origin" if site else origin != "" and origin in ours
    if not is_ours:
        raise HTTPException(
            403, "This form was not sent from a page of this Airflow. Send it from the page Models."
        )


_Reason = Annotated[str, Form(max_length=_MAX_REASON)]


_CAN_CHANGE = [CAN_EDIT_PIPELINE, Depends(check_same_origin)]


@app.post("/pipelines/{dag_id}/models/promote", dependencies=_CAN_CHANGE)
def promote(
    dag_id: str,
    version: Annotated[int, Form()],
    user: GetUserDep,
    session: SessionDep,
    expected: Annotated[str, Form()] = "",
    reason: _Reason = "",
) -> RedirectResponse:
    """Puts a version in service. `expected` is the one that the user has seen there."""
    registry = Registry(find_pipeline(dag_id, session).registry)
    registry.promote(version, _sign_reason(reason, user), expected=_parse_version(expected))
    done = f"Version {version} is in service."
    return _log_and_redirect(dag_id, user, session, "promote", done, version=version)


@app.post("/pipelines/{dag_id}/models/rollback", dependencies=_CAN_CHANGE)
def roll_back(
    dag_id: str,
    user: GetUserDep,
    session: SessionDep,
    expected: Annotated[str, Form()],
    reason: _Reason = "",
) -> RedirectResponse:
    """Puts the previous champion back in service."""
    registry = Registry(find_pipeline(dag_id, session).registry)
    previous = registry.find_by_alias(PREVIOUS)
    if previous is None:
        raise NotFound("There is no earlier champion. Promote another version by its number.")
    registry.promote(
        previous.number,
        f"rolled back from version {expected}: {_sign_reason(reason, user)}",
        expected=_parse_version(expected),
    )
    done = f"Version {previous.number} is in service."
    return _log_and_redirect(dag_id, user, session, "rollback", done, version=previous.number)


@app.post("/pipelines/{dag_id}/models/alias", dependencies=_CAN_CHANGE)
def set_alias(
    dag_id: str,
    alias: Annotated[str, Form(max_length=100)],
    user: GetUserDep,
    session: SessionDep,
    version: Annotated[str, Form()] = "",
    expected: Annotated[str, Form()] = "",
    reason: _Reason = "",
) -> RedirectResponse:
    """Lets an alias name a version, or removes it. `expected` is the version that it named."""
    registry, number = Registry(find_pipeline(dag_id, session).registry), _parse_version(version)
    registry.set_alias(alias, number, _sign_reason(reason, user), _parse_version(expected))
    done = f"{alias} names version {number}." if number else f"The alias {alias} is removed."
    return _log_and_redirect(dag_id, user, session, "alias", done, alias=alias, version=number)


@app.post("/pipelines/{dag_id}/models/retire", dependencies=_CAN_CHANGE)
def retire(
    dag_id: str,
    version: Annotated[int, Form()],
    user: GetUserDep,
    session: SessionDep,
    reason: _Reason = "",
) -> RedirectResponse:
    """Removes a version, unless an alias names it by now."""
    registry = Registry(find_pipeline(dag_id, session).registry)
    registry.retire_version(version, _sign_reason(reason, user))
    done = f"Version {version} is retired."
    return _log_and_redirect(dag_id, user, session, "retire", done, version=version)


def _parse_version(number: str) -> int | None:
    if number and not _NUMBER.fullmatch(number):
        raise HTTPException(422, "a version must be a number, or empty for none")
    return int(number) if number else None


def _sign_reason(reason: str, user: BaseUser) -> str:
    if not reason.strip():
        raise HTTPException(422, "Say why, in the field Reason. It is part of the model's history.")
    return f"{reason.strip()} ({user.get_name()}, in the UI)"


def _log_and_redirect(
    dag_id: str, user: BaseUser, session: SessionDep, event: str, done: str, **extra: object
) -> RedirectResponse:
    """Writes the event into Airflow's audit log, and redirects to the page with what is done."""
    session.add(
        Log(f"trainyard_{event}", owner=user.get_name(), dag_id=dag_id, extra=json.dumps(extra))
    )
    return RedirectResponse("../models?" + urlencode({"done": done}), status_code=303)


CAN_READ_RUN = Depends(requires_access_dag("GET", DagAccessEntity.RUN))
CAN_READ_LOGS = Depends(requires_access_dag("GET", DagAccessEntity.TASK_LOGS))

_MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_PAGES = ("report", "data", "own")
_Page = Literal["report", "data", "own"]
_MAX_PAGE_BYTES = 64 << 20
_MAX_PAGES, _MAX_FILTER = 1_000_000, 200
_STORE_SECONDS = 10
"""How long a page waits for an unreachable store."""


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
    response = render("problem.html", _find_root(request), message=str(problem))
    response.status_code = 404 if isinstance(problem, NotFound) else 409
    return response


@app.exception_handler(401)
async def ask_to_log_in(request: Request, problem: HTTPException) -> Response:
    """Sends a person to Airflow's login, and back here after it. A program gets the status."""
    if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        query = urlencode({"next": str(request.url)})
        return RedirectResponse(f"{_find_root(request)}../api/v2/auth/login?{query}")
    return JSONResponse({"detail": problem.detail}, 401, problem.headers)


@app.exception_handler(403)
async def refuse(request: Request, problem: HTTPException) -> Response:
    """Tells a person in words that Airflow does not allow it. A program gets the status."""
    if "text/html" not in request.headers.get("accept", ""):
        return JSONResponse({"detail": problem.detail}, 403, problem.headers)
    why = problem.detail if problem.detail != "Forbidden" else "Your role in Airflow does not allow"
    text = why if why.endswith(".") else f"{why} this. Ask whoever may edit this DAG."
    response = render("problem.html", _find_root(request), message=text)
    response.status_code = 403
    return response


def _find_root(request: Request) -> str:
    """The relative address of the plugin's root, from the requested page."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return "../" * (len(Path(path).parts) - 2)


@app.get("/{name}.{suffix}", dependencies=[SIGNED_IN])
def get_file(name: str, suffix: str) -> Response:
    """Returns the style sheet, the script or an icon."""
    if f"{name}.{suffix}" not in FILES:
        raise HTTPException(404)
    return Response(FILES[f"{name}.{suffix}"], media_type=_MEDIA_TYPES[suffix])


@app.get("/pipelines/{dag_id}/runs", dependencies=[CAN_READ_RUN])
def show_runs(
    dag_id: str,
    session: SessionDep,
    span: Annotated[int, Query(ge=0, le=_MAX_PAGES)] = 0,
    page: Annotated[int, Query(ge=0, le=_MAX_PAGES)] = 0,
    kind: Kind | Literal[""] = "",
    text: Annotated[str, Query(max_length=_MAX_FILTER)] = "",
    sort: Annotated[str, Query(max_length=_MAX_FILTER)] = "-started",
    all: bool | None = None,
    recent: bool = False,
) -> HTMLResponse:
    """Shows the runs of a pipeline. Without `all`, unchanged ones are hidden if most are."""
    query = RunsQuery(span, page, kind, text, sort, all, recent)
    view = view_runs(dag_id, session, dt.datetime.now(dt.UTC), query)
    values = {"dag_id": dag_id, "view": view, "query": query, "words": WORDS, "legend": LEGEND}
    return render("runs.html", IN_PIPELINE, most=MAX_OVERLAID, span_size=SPAN, **values)


@app.get("/pipelines/{dag_id}/overlay", dependencies=[CAN_READ_RUN])
def show_overlay(
    dag_id: str,
    session: SessionDep,
    run_id: Annotated[list[str], Query(default_factory=list)],
) -> HTMLResponse:
    """Shows runs together: their curves, their metrics, and what differs between them."""
    run_ids = list(dict.fromkeys(run_id))
    if not 1 <= len(run_ids) <= MAX_OVERLAID:
        raise NotFound(f"Tick 1 to {MAX_OVERLAID} runs in the table of outcomes, then Compare.")
    view = view_overlay(dag_id, run_ids, session)
    return render("overlay.html", IN_PIPELINE, dag_id=dag_id, view=view)


@app.get("/pipelines/{dag_id}/progress", dependencies=[CAN_READ_RUN])
def show_progress(
    dag_id: str, run_id: str, session: SessionDep, task_id: str | None = None
) -> HTMLResponse:
    """Shows a run in progress, or one task of it."""
    run, now = find_run(dag_id, run_id, session), dt.datetime.now(dt.UTC)
    tasks = [task for task in view_tasks(run, now) if task_id in (None, task.name)]
    head = view_head(run, session)
    failure = view_failure(run, head, session)
    if failure and task_id not in (None, failure.task):
        failure = None
    values = {"run": run, "tasks": tasks, "head": head, "failure": failure}
    return render("progress.html", IN_PIPELINE, **values)


@app.get("/pipelines/{dag_id}/report", dependencies=[CAN_READ_RUN])
def show_report(
    dag_id: str, run_id: str, session: SessionDep, page: _Page = "report"
) -> HTMLResponse:
    """Shows the pages that a run has left, in a sandboxed frame."""
    run = find_run(dag_id, run_id, session)
    head = view_head(run, session)
    return render(
        "report.html",
        IN_PIPELINE,
        run=run,
        head=head,
        failure=view_failure(run, head, session),
        page=page,
        available_pages=_list_pages(run),
        has_rejected=page == "data" and find_rejected(run) is not None,
        query=urlencode({"run_id": run_id}),
    )


@app.get("/pipelines/{dag_id}/report/content", dependencies=[CAN_READ_RUN])
def show_report_content(
    dag_id: str,
    run_id: str,
    session: SessionDep,
    page: _Page = "report",
    trainyard_theme: Annotated[str, Cookie()] = "",
) -> HTMLResponse:
    """Returns a page as the job has written it, in the theme that `airflow.js` has found."""
    run = find_run(dag_id, run_id, session)
    read = _find_page(run, page)
    if read is None:
        raise NotFound(f"The run {run_id} has no page {page}.")
    content = read(_MAX_PAGE_BYTES) + FORCED_THEMES.get(trainyard_theme, b"")
    return HTMLResponse(content, headers={"Content-Security-Policy": SANDBOX})


def _list_pages(run: PipelineRun) -> list[str]:
    """Lists the pages that a run has. The one of thresholds explains itself if it is empty."""
    found = [name for name in _PAGES if _find_page(run, name)]
    return [*found, "thresholds"] if "report" in found else found


def _view_frame(run: PipelineRun, session: SessionDep) -> dict[str, Any]:
    """Views what is above each page of a run's evaluation: the outcome, and the tabs."""
    return {
        "run": run,
        "head": view_head(run, session),
        "available_pages": _list_pages(run),
        "query": urlencode({"run_id": run.run_id}),
    }


_Hundredths = Annotated[int, Query(ge=0, lt=NUM_THRESHOLDS)]


@app.get("/pipelines/{dag_id}/thresholds", dependencies=[CAN_READ_RUN])
def show_thresholds(
    dag_id: str, run_id: str, session: SessionDep, threshold: _Hundredths | None = None
) -> HTMLResponse:
    """Shows the answers of a run's evaluation at a threshold in hundredths."""
    run = find_run(dag_id, run_id, session)
    is_evaluated, counts = read_counts(run)
    return render(
        "thresholds.html",
        IN_PIPELINE,
        **_view_frame(run, session),
        is_evaluated=is_evaluated,
        view=view_thresholds(counts, threshold) if counts else None,
    )


@app.get("/pipelines/{dag_id}/thresholds/content", dependencies=[CAN_READ_RUN])
def get_thresholds(dag_id: str, run_id: str, session: SessionDep) -> JSONResponse:
    """Returns the text of each cell of the page at each threshold."""
    _, counts = read_counts(find_run(dag_id, run_id, session))
    if counts is None:
        raise NotFound(f"The run {run_id} has no answers by threshold.")
    return JSONResponse(view_thresholds(counts).series)


@app.get("/pipelines/{dag_id}/predictions", dependencies=[CAN_READ_RUN])
def show_predictions(
    dag_id: str,
    run_id: str,
    session: SessionDep,
    page: Annotated[int, Query(ge=0, le=_MAX_PAGES)] = 0,
    show: Shown = "all",
    label: Annotated[str, Query(pattern=r"^\d{0,6}$")] = "",
) -> HTMLResponse:
    """Shows a classifier's answers. `label` is the number of a class, or empty for all."""
    run = find_run(dag_id, run_id, session)
    is_evaluated, counts = read_counts(run)
    _, file = find_evaluation_file(run, ANSWERS)
    chosen = int(label) if label else None
    return render(
        "predictions.html",
        IN_PIPELINE,
        **_view_frame(run, session),
        is_evaluated=is_evaluated,
        counts=counts,
        page=page,
        show=show,
        label=chosen,
        view=view_predictions(file, counts, page, show, chosen) if counts and file else None,
    )


@app.get("/pipelines/{dag_id}/job-file", dependencies=[CAN_READ_RUN, CAN_READ_LOGS])
def show_job_file(
    dag_id: str, run_id: str, task: str, name: str, session: SessionDep
) -> PlainTextResponse:
    """Shows the end of a log, or of the list of rejected files, as plain text."""
    content = read_job_file(find_run(dag_id, run_id, session), task, name)
    return PlainTextResponse(content, headers={"Content-Security-Policy": SANDBOX})


def _find_page(run: PipelineRun, page: str) -> Callable[[int], bytes] | None:
    """Finds a page in the artifacts of a run, or in the attempt that has refused the data.

    Returns a function that reads the page up to a number of bytes, or None. Raises DataError if a
    record of the run is damaged, or does not name an artifact of the pipeline.
    """

    def read_task_manifest(task: str) -> StorePath | None:
        return find_recorded_manifest(run.layout, run.run_id, task, task)

    if page == "own":
        return find_own_page(run)
    if page == "report":
        file = find_report(read_task_manifest("evaluate"), read_task_manifest("export"))
    else:
        return find_data_page(run)
    return run.layout.locate(file).read if file else None


# The data sets of a pipeline

_DataTab = Literal["refused", "good", "history"]
_MAX_LIST_BYTES = 64 << 20


@app.get("/pipelines/{dag_id}/data", dependencies=[CAN_READ_RUN])
def show_data(dag_id: str, session: SessionDep, tab: _DataTab | None = None) -> HTMLResponse:
    """Shows the newest data set, newer data that were refused, or what the last ones had."""
    view = view_data(dag_id, session)
    runs = {"refused": view.refused, "good": view.good, "history": None}
    available = [name for name in runs if runs[name] or (name == "history" and view.rows)]
    shown = tab if tab in available else next(iter(available), "good")
    run = runs[shown]
    return render(
        "data.html",
        IN_PIPELINE,
        dag_id=dag_id,
        view=view,
        tab=shown,
        available=available,
        run=run,
        head=view_head(run, session) if run else None,
        has_rejected=bool(run and find_rejected(run)),
        query=urlencode({"run_id": run.run_id}) if run else "",
    )


@app.get("/pipelines/{dag_id}/report/rejected.csv", dependencies=[CAN_READ_RUN])
def get_rejected(dag_id: str, run_id: str, session: SessionDep) -> Response:
    """Returns the rejected records of a run as CSV, all or none of them."""
    read = find_rejected(find_run(dag_id, run_id, session))
    if read is None:
        raise NotFound(f"The run {run_id} has no list of rejected records.")
    content = read(_MAX_LIST_BYTES)
    if len(content) >= _MAX_LIST_BYTES:
        raise DataError(
            f"The list of the rejected records of {run_id} has {_MAX_LIST_BYTES >> 20} MiB or "
            "more. Read it in the storage."
        )
    text = format_rejected(content, f"the rejected records of {run_id}")
    headers = {"Content-Disposition": 'attachment; filename="rejected.csv"'}
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)
