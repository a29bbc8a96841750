"""The API server: HTTP requests on the objects of the cluster."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from .controllers import Controllers
from .exec import run_command
from .kubelet import Kubelet
from .objects import Object, Objects
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
_VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


@dataclass
class Fault:
    """An answer instead of the real one, for the next requests that match."""

    request: re.Pattern[str]
    """Of `METHOD PATH`."""
    status: int
    headers: Mapping[str, str]
    remaining: int
    message: str = "a fault of the test"


class Api:
    """The application of the server.

    Args:
      objects: the objects of the cluster.
      namespace: the only one that exists.
      accounts: by their tokens.
      controllers: what deletes objects.
      kubelet: what has logs and runs commands.

    Attributes:
      requests: `METHOD PATH` of all requests.
      delay_seconds: the time between a request and its answer, also to the handshake of a
        websocket.
    """

    def __init__(
        self,
        objects: Objects,
        namespace: str,
        accounts: Mapping[str, Account],
        controllers: Controllers,
        kubelet: Kubelet,
    ):
        self._objects, self._namespace, self._accounts = objects, namespace, accounts
        self._controllers, self._kubelet = controllers, kubelet
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.delay_seconds = 0.0

    def build_app(self) -> ASGIApp:
        routes: list[Route | WebSocketRoute] = [
            WebSocketRoute("/api/v1/namespaces/{namespace}/{resource}/{name}/exec", self._exec),
            Route("/api/v1/namespaces/{namespace}/{resource}/{name}/log", self._read_log),
        ]
        for prefix in ("/api/v1", "/apis/{group}/v1"):
            many = f"{prefix}/namespaces/{{namespace}}/{{resource}}"
            routes += [
                Route(many, self._handle, methods=["GET", "POST"]),
                Route(f"{many}/{{name}}", self._handle, methods=["GET", "PATCH", "DELETE"]),
            ]
        app = Starlette(routes=routes)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_late(message: Message) -> None:
                if message["type"] in ("http.response.start", "websocket.accept"):
                    await asyncio.sleep(self.delay_seconds)
                await send(message)

            await app(scope, receive, send_late)

        return answer

    def _refuse(
        self, request: HTTPConnection, method: str, *verbs: str, part: str = ""
    ) -> Response | None:
        """The answer to a request that is not carried out, or None."""
        self.requests.append(f"{method} {request.url.path}")
        for fault in self.faults:
            if fault.remaining and fault.request.search(self.requests[-1]):
                fault.remaining -= 1
                return _make_status(fault.status, fault.message, fault.headers)
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if (account := self._accounts.get(token)) is None:
            return _make_status(401, "Unauthorized")
        group = request.path_params.get("group", "")
        namespace, resource = request.path_params["namespace"], request.path_params["resource"]
        for verb in verbs:
            if not account.may(Right(group, resource + part, verb)):
                return _make_status(
                    403,
                    f'{resource}{part} is forbidden: User "{account.name}" cannot {verb} resource '
                    f'"{resource}{part}" in API group "{group}" in the namespace "{namespace}"',
                )
        return None

    async def _handle(self, request: Request) -> Response:
        namespace, resource = request.path_params["namespace"], request.path_params["resource"]
        verb = _VERBS.get(request.method, "get" if "name" in request.path_params else "list")
        if refusal := self._refuse(request, request.method, verb):
            return refusal
        if verb in ("create", "patch") and request.query_params.get("fieldValidation") != "Strict":
            return _make_status(400, "the tests want fieldValidation=Strict")
        body = json.loads(await request.body() or b"{}")
        with self._objects.lock:
            if verb == "list":
                return self._list(resource, namespace, request.query_params)
            if verb == "create":
                return self._create(resource, namespace, body)
            if (found := self._find(request)) is None:
                return _describe_missing(request)
            if verb == "patch":
                return self._patch(resource, found, body)
            if verb == "delete":
                grace = request.query_params.get("gracePeriodSeconds")
                self._controllers.delete(resource, found, None if grace is None else int(grace))
            return JSONResponse(found)

    def _list(self, resource: str, namespace: str, query: Mapping[str, str]) -> Response:
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        items = [
            each
            for each in self._objects.list(resource, namespace)
            if _matches(each["metadata"].get("labels", {}), labels) and _matches(each, fields)
        ]
        return JSONResponse({"kind": f"{_KINDS[resource]}List", "apiVersion": "v1", "items": items})

    def _create(self, resource: str, namespace: str, body: Object) -> Response:
        if namespace != self._namespace:
            return _make_status(404, f'namespaces "{namespace}" not found')
        if body["kind"] != _KINDS[resource]:
            return _make_status(400, f"a {body['kind']} is no {resource}")
        if problems := validate(body):
            return _make_status(422, f"{body['kind']} is invalid: {'; '.join(problems)}")
        if found := self._objects.add(resource, namespace, body):
            return JSONResponse(found, 201)
        return _make_status(409, f'{resource} "{body["metadata"]["name"]}" already exists')

    def _patch(self, resource: str, found: Object, change: Object) -> Response:
        merged = _merge(found, change)
        if problems := validate(merged):
            return _make_status(422, f"{found['kind']} is invalid: {'; '.join(problems)}")
        found.update(merged)
        self._objects.record(resource, found)
        return JSONResponse(found)

    async def _read_log(self, request: Request) -> Response:
        if refusal := self._refuse(request, "GET", "get", part="/log"):
            return refusal
        if (pod := self._find(request)) is None:
            return _describe_missing(request)
        log = self._kubelet.find_log(pod)
        if not log.exists():
            return _make_status(400, "container is waiting to start: ContainerCreating")
        lines = log.read_text(errors="replace").splitlines(keepends=True)
        return PlainTextResponse("".join(lines[-int(request.query_params["tailLines"]) :]))

    async def _exec(self, websocket: WebSocket) -> None:
        pod = self._find(websocket)
        if refusal := self._refuse_exec(websocket, pod):
            await websocket.send_denial_response(refusal)
            return
        environment = self._kubelet.build_environment(pod)
        await run_command(websocket, self._kubelet.protocols, environment)

    def _refuse_exec(self, websocket: WebSocket, pod: Object | None) -> Response | None:
        # `create` is asked for by default since Kubernetes 1.35, besides the `get` of a websocket.
        if refusal := self._refuse(websocket, "GET", "get", "create", part="/exec"):
            return refusal
        if pod is None:
            return _describe_missing(websocket)
        if pod["status"]["phase"] != "Running":
            return _make_status(400, f"pod {pod['metadata']['name']} is not running")
        return None

    def _find(self, request: HTTPConnection) -> Object | None:
        parameters = request.path_params
        return self._objects.get(
            parameters["resource"], parameters["namespace"], parameters["name"]
        )


def _make_status(code: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
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


def _describe_missing(request: HTTPConnection) -> JSONResponse:
    parameters = request.path_params
    return _make_status(404, f'{parameters["resource"]} "{parameters["name"]}" not found')


def _merge(found: Object, change: Object) -> Object:
    """A merge patch (RFC 7396)."""
    merged = dict(found)
    for key, value in change.items():
        both_are_objects = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both_are_objects else value
    return {key: value for key, value in merged.items() if value is not None}


def _matches(found: Object, selector: str) -> bool:
    """Returns whether an object has the values of `a=value,...`. The path of a field has dots."""
    for term in filter(None, selector.split(",")):
        path, _, wanted = term.partition("=")
        value: object = found.get(path)
        if value is None:
            value = found
            for key in path.split("."):
                value = value.get(key) if isinstance(value, dict) else None
        if value != wanted:
            return False
    return True
