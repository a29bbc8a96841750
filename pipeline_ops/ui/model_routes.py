"""The pages of the models, and the two forms that change the version in service."""

from __future__ import annotations

import json
from typing import Annotated
from urllib.parse import urlencode, urlparse

from airflow.configuration import conf
from fastapi import APIRouter, Depends, Form, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from pipeline_ops.airflow_internals import (
    BaseUser,
    DagDetails,
    GetUserDep,
    Log,
    SessionDep,
    get_auth_manager,
    requires_access_dag,
    requires_authenticated,
)
from pipeline_ops.airflow_runs import NotFound, find_pipeline, find_pipelines
from pipeline_ops.errors import TrainyardError
from pipeline_ops.registry.aliases import PREVIOUS
from pipeline_ops.registry.registry import Registry
from pipeline_ops.ui.models import ModelView, view_model
from pipeline_ops.ui.pages import IN_PIPELINE, render

router = APIRouter()

SIGNED_IN = Depends(requires_authenticated())
CAN_READ_PIPELINE = Depends(requires_access_dag("GET"))
CAN_EDIT_PIPELINE = Depends(requires_access_dag("PUT"))
"""A user who may pause a pipeline may also choose the model version that is in service."""

_MAX_REASON = 500


@router.get("/models", dependencies=[SIGNED_IN])
def show_models(user: GetUserDep, session: SessionDep) -> HTMLResponse:
    """Shows the models of all pipelines that the user may read."""
    dag_ids = find_pipelines(
        get_auth_manager().get_authorized_dag_ids(user=user, session=session), session
    )
    found = [(dag_id, *_try_view_model(dag_id, session)) for dag_id in dag_ids]
    return render("models.html", "", pipelines=[entry for entry in found if entry[1] or entry[2]])


@router.get("/pipelines/{dag_id}/models", dependencies=[CAN_READ_PIPELINE])
def show_model(dag_id: str, user: GetUserDep, session: SessionDep, done: str = "") -> HTMLResponse:
    """Shows the versions of a pipeline's model."""
    view = view_model(find_pipeline(dag_id, session))
    may_change = get_auth_manager().is_authorized_dag(
        method="PUT", details=DagDetails(id=dag_id), user=user
    )
    return render(
        "model.html", IN_PIPELINE, dag_id=dag_id, model=view, may_change=may_change, done=done
    )


def check_same_origin(request: Request) -> None:
    """Rejects a form that does not come from a page of this Airflow.

    The browser sends the session's cookie along from any site. A program with its token in a header
    needs no page.
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


@router.post(
    "/pipelines/{dag_id}/models/promote",
    dependencies=[CAN_EDIT_PIPELINE, Depends(check_same_origin)],
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
    registry.promote(version, _sign_reason(reason, user), expected=_parse_version(expected))
    return _log_and_redirect(dag_id, user, session, "promote", version)


@router.post(
    "/pipelines/{dag_id}/models/rollback",
    dependencies=[CAN_EDIT_PIPELINE, Depends(check_same_origin)],
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
    previous = registry.find_by_alias(PREVIOUS)
    if previous is None:
        raise NotFound("There is no earlier champion. Promote another version by its number.")
    registry.promote(
        previous.number,
        f"rolled back from version {expected}: {_sign_reason(reason, user)}",
        expected=_parse_version(expected),
    )
    return _log_and_redirect(dag_id, user, session, "rollback", previous.number)


def _parse_version(expected: str) -> int | None:
    """Parses the number of the version in service; None if there was none."""
    if expected and not expected.isdecimal():
        raise HTTPException(422, "expected must be the number of the version in service, or empty")
    return int(expected) if expected else None


def _sign_reason(reason: str, user: BaseUser) -> str:
    return f"{reason.strip() or 'by hand'} ({user.get_name()}, in the UI)"


def _log_and_redirect(
    dag_id: str, user: BaseUser, session: SessionDep, event: str, version: int
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


def _try_view_model(dag_id: str, session: SessionDep) -> tuple[ModelView | None, str]:
    """Returns the model of a pipeline, or the problem with it.

    A registry that cannot be read must not hide the others. For a DAG of ours that is not a
    pipeline, there is neither.
    """
    try:
        return view_model(find_pipeline(dag_id, session)), ""
    except NotFound:
        return None, ""
    except (TrainyardError, OSError) as problem:
        return None, str(problem)
