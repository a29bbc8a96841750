"""The API server: HTTP requests on the objects of the cluster."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from .objects import Object, Objects, matches
from .rbac import Account, Right
from .validation import validate

_KINDS = {
    "jobs": "Job",
    "pods": "Pod",
    "secrets": "Secret",
    "services": "Service",
    "networkpolicies": "NetworkPolicy",
    "events": "Event",
}
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "AlreadyExists",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
}


@dataclass
class Fault:
    """An answer instead of the real one, for the next requests that match."""

    request: re.Pattern[str]
    """Of `METHOD PATH`."""
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "a fault of the test"
    remaining: int = 1


def make_status(code: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS.get(code, "InternalError"),
        "code": code,
    }
    return JSONResponse(body, code, headers)


class Api:
    """The application of the server.

    Args:
      objects: the objects of the cluster.
      accounts: by their tokens.
      namespaces: those that exist.
      delete: deletes an object, given its resource, the object and the grace period.
      find_log: the log of a pod.
      run_command: carries an `exec` over a websocket.
    """

    def __init__(
        self,
        objects: Objects,
        accounts: dict[str, Account],
        namespaces: set[str],
        delete: Callable[[str, Object, int | None], None],
        find_log: Callable[[Object], Path],
        run_command: Callable[[WebSocket, Object], object],
    ):
        self._objects, self._accounts, self._namespaces = objects, accounts, namespaces
        self._delete, self._find_log, self._run_command = delete, find_log, run_command
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        """`METHOD PATH` of all requests."""
        self.delay_seconds = 0.0
        """The time between a request and its answer, also to the handshake of a websocket."""

    def build_app(self) -> ASGIApp:
        routes: list[Route | WebSocketRoute] = [
            WebSocketRoute("/api/v1/namespaces/{namespace}/pods/{name}/exec", self._exec),
            Route("/api/v1/namespaces/{namespace}/pods/{name}/log", self._read_log),
        ]
        for prefix in ("/api/v1", "/apis/{group}/v1"):
            many = f"{prefix}/namespaces/{{namespace}}/{{resource}}"
            routes += [
                Route(many, self._list, methods=["GET"]),
                Route(many, self._create, methods=["POST"]),
                Route(f"{many}/{{name}}", self._read, methods=["GET"]),
                Route(f"{many}/{{name}}", self._remove, methods=["DELETE"]),
                Route(f"{many}/{{name}}", self._patch, methods=["PATCH"]),
            ]
        app = Starlette(routes=routes)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_late(message: Message) -> None:
                if message["type"] in ("http.response.start", "websocket.accept"):
                    await asyncio.sleep(self.delay_seconds)
                await send(message)

            await app(scope, receive, send_late)

        return answer

    def _refuse(self, request: HTTPConnection, method: str, *verbs: str, sub: str = ""):
        """The answer to a request that is not carried out, or None."""
        self.requests.append(f"{method} {request.url.path}")
        for fault in self.faults:
            if fault.remaining and fault.request.search(self.requests[-1]):
                fault.remaining -= 1
                return make_status(fault.status, fault.message, fault.headers)
        account = self._find_account(request)
        if account is None:
            return make_status(401, "Unauthorized")
        group = request.path_params.get("group", "")
        resource = request.path_params.get("resource", "pods") + (f"/{sub}" if sub else "")
        namespace = request.path_params["namespace"]
        for verb in verbs:
            if not account.may(Right(group, resource, verb)):
                return make_status(
                    403,
                    f'{resource} is forbidden: User "{account.name}" cannot {verb} resource '
                    f'"{resource}" in API group "{group}" in the namespace "{namespace}"',
                )
        return None

    async def _create(self, request: Request) -> Response:
        if refusal := self._refuse(request, "POST", "create"):
            return refusal
        namespace, resource = request.path_params["namespace"], request.path_params["resource"]
        if namespace not in self._namespaces:
            return make_status(404, f'namespaces "{namespace}" not found')
        body = await request.json()
        if body.get("kind") != _KINDS.get(resource):
            return make_status(400, f"a {body.get('kind')} is no {resource}")
        if request.query_params.get("fieldValidation") != "Strict":
            return make_status(400, "the tests want fieldValidation=Strict")
        if problems := validate(body):
            return make_status(422, f"{body['kind']} is invalid: {'; '.join(problems)}")
        found = self._objects.add(resource, namespace, body)
        if found is None:
            name = body["metadata"]["name"]
            return make_status(409, f'{resource} "{name}" already exists')
        return JSONResponse(found, 201)

    async def _list(self, request: Request) -> Response:
        if refusal := self._refuse(request, "GET", "list"):
            return refusal
        namespace, resource = request.path_params["namespace"], request.path_params["resource"]
        selector = request.query_params.get("labelSelector", "")
        fields = request.query_params.get("fieldSelector", "")
        with self._objects.lock:
            found = self._objects.list(resource, namespace)
            text = json.dumps(
                {
                    "kind": f"{_KINDS[resource]}List",
                    "apiVersion": "v1",
                    "metadata": {"resourceVersion": str(self._objects.version)},
                    "items": [
                        each
                        for each in found
                        if matches(each, selector) and _has_fields(each, fields)
                    ],
                }
            )
        return Response(text, media_type="application/json")

    async def _read(self, request: Request) -> Response:
        if refusal := self._refuse(request, "GET", "get"):
            return refusal
        found = self._find(request)
        return JSONResponse(found) if found else self._describe_missing(request)

    async def _patch(self, request: Request) -> Response:
        if refusal := self._refuse(request, "PATCH", "patch"):
            return refusal
        found = self._find(request)
        if found is None:
            return self._describe_missing(request)
        if request.query_params.get("fieldValidation") != "Strict":
            return make_status(400, "the tests want fieldValidation=Strict")
        change = await request.json()
        with self._objects.lock:
            merged = _merge(found, change)
            if problems := validate(merged):
                return make_status(422, f"{found['kind']} is invalid: {'; '.join(problems)}")
            found.update(merged)
            self._objects.touch(request.path_params["resource"], found)
        return JSONResponse(found)

    async def _remove(self, request: Request) -> Response:
        if refusal := self._refuse(request, "DELETE", "delete"):
            return refusal
        options = json.loads(await request.body() or b"{}")
        if problems := validate({"kind": "DeleteOptions", "metadata": {"name": "x"}} | options):
            problems = [problem for problem in problems if "metadata" not in problem]
            if problems:
                return make_status(422, "; ".join(problems))
        found = self._find(request)
        if found is None:
            return self._describe_missing(request)
        grace = options.get("gracePeriodSeconds", request.query_params.get("gracePeriodSeconds"))
        self._delete(request.path_params["resource"], found, None if grace is None else int(grace))
        return JSONResponse(found)

    async def _read_log(self, request: Request) -> Response:
        if refusal := self._refuse(request, "GET", "get", sub="log"):
            return refusal
        request.path_params["resource"] = "pods"
        pod = self._find(request)
        if pod is None:
            return self._describe_missing(request)
        log = self._find_log(pod)
        if not log.exists():
            return make_status(400, "container is waiting to start: ContainerCreating")
        lines = log.read_text(errors="replace").splitlines(keepends=True)
        tail = request.query_params.get("tailLines")
        return PlainTextResponse("".join(lines[-int(tail) :] if tail else lines))

    async def _exec(self, websocket: WebSocket) -> None:
        # `create` is asked for by default since Kubernetes 1.35, besides the `get` of a websocket.
        refusal = self._refuse(websocket, "GET", "get", "create", sub="exec")
        websocket.path_params["resource"] = "pods"
        pod = self._find(websocket)
        if refusal is None and pod is None:
            refusal = self._describe_missing(websocket)
        if refusal is not None:
            await websocket.send_denial_response(refusal)
            return
        await self._run_command(websocket, pod)

    def _find_account(self, request: HTTPConnection) -> Account | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return self._accounts.get(token) if scheme.lower() == "bearer" else None

    def _find(self, request: HTTPConnection) -> Object | None:
        parameters = request.path_params
        return self._objects.get(
            parameters["resource"], parameters["namespace"], parameters["name"]
        )

    def _describe_missing(self, request: HTTPConnection) -> JSONResponse:
        parameters = request.path_params
        return make_status(404, f'{parameters["resource"]} "{parameters["name"]}" not found')


def _merge(found: Object, change: Object) -> Object:
    """A merge patch (RFC 7396)."""
    merged = dict(found)
    for key, value in change.items():
        both_are_objects = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both_are_objects else value
    return {key: value for key, value in merged.items() if value is not None}


def _has_fields(found: Object, selector: str) -> bool:
    """Returns whether an object has the fields of `a.b=value,...`."""
    for term in filter(None, selector.split(",")):
        path, _, wanted = term.partition("=")
        value: object = found
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value != wanted:
            return False
    return True
