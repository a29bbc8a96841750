"""The HTTP application of the server: Starlette around a `Service`, with limits.

The limits here are on the work that is under way at once. The limits of a connection are in
`http_protocol.py`. Those of an image are in the model itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Collection
from http import HTTPStatus
from urllib.parse import urlsplit

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from pipeline_ops.export.serving.http_limits import Limits
from pipeline_ops.export.serving.rest import BadRequest
from pipeline_ops.export.serving.service import HttpResponse, Service, to_json_response

_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_PAGE_POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'; img-src blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_log = logging.getLogger(__name__)


class Application:
    """Answers requests with the responses of a service.

    Args:
      allowed_names: names by which clients may address the server, in addition to addresses,
        localhost and this machine's name. A browser can be made to resolve the name of another
        site to this machine (DNS rebinding). Then pages of that site could read answers.
    """

    def __init__(self, service: Service, limits: Limits, allowed_names: Collection[str] = ()):
        self._service, self._limits = service, limits
        self._allowed = {
            name.lower() for name in (*allowed_names, socket.gethostname(), *_LOCAL_NAMES)
        }
        self._threads = anyio.CapacityLimiter(limits.threads)
        self._inflight_bytes = self._predictions = 0

    def asgi(self) -> Starlette:
        def answer_error(_: Request, error: Exception) -> Response:
            status = error.status_code if isinstance(error, HTTPException) else 500
            return _to_error_response(BadRequest(HTTPStatus(status).phrase, status))

        return Starlette(
            routes=[Route("/{path:path}", self._answer, methods=["GET", "POST"])],
            exception_handlers={HTTPException: answer_error},
        )

    async def _answer(self, request: Request) -> Response:
        try:
            return _to_starlette_response(await self._dispatch(request))
        except BadRequest as error:
            closes = request.method == "POST" and error.status in _UNREAD_BODY_STATUSES
            return _to_error_response(error, closes)
        except ClientDisconnect:
            return Response()  # the client is gone
        except Exception:  # internals go to the log, not to the client
            _log.exception("%s %s", request.method, request.url.path)
            failure = BadRequest(
                "internal error. The log of the server has the details.",
                HTTPStatus.INTERNAL_SERVER_ERROR,
            )
            return _to_error_response(failure, closes=True)

    async def _dispatch(self, request: Request) -> HttpResponse:
        self._check_host_and_origin(request)
        path = request.scope["path"]
        if request.method != "POST":
            return self._service.get(path)
        if self._predictions >= self._limits.threads + self._limits.max_waiting:
            raise BadRequest(
                "too many predictions are waiting. Try again later.",
                HTTPStatus.SERVICE_UNAVAILABLE,
            )
        self._predictions += 1
        try:
            async with self._body(request) as body:
                return await anyio.to_thread.run_sync(
                    self._service.post, path, body, limiter=self._threads
                )
        finally:
            self._predictions -= 1

    def _check_host_and_origin(self, request: Request) -> None:
        """Checks the names in the headers.

        Raises:
          BadRequest: the host is not a name of this server, or a page of another site posts.
        """
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        name = _parse_hostname(f"//{host}")
        if host and not self._is_allowed_name(name):
            raise BadRequest(
                f"{name or host} is not a name of this server. "
                f"Start the server with --allow-host {name or 'NAME'}.",
                HTTPStatus.MISDIRECTED_REQUEST,
            )
        is_same_origin = (
            origin is None
            or origin.partition("//")[2] == host
            or _parse_hostname(origin) in self._allowed - _LOCAL_NAMES
        )
        if request.method == "POST" and not is_same_origin:
            raise BadRequest(f"pages of {origin} may not request predictions", HTTPStatus.FORBIDDEN)

    def _is_allowed_name(self, name: str) -> bool:
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        return name in self._allowed

    @contextlib.asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytearray]:
        """Yields the body, which counts as under way until the block ends.

        Raises:
          BadRequest: the body is too large or too slow, or too many bytes are under way.
        """
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                await self._read(request, body)
        except TimeoutError:
            reason = f"the body must come within {self._limits.body_seconds:g} seconds"
            raise BadRequest(reason, HTTPStatus.REQUEST_TIMEOUT) from None
        else:
            yield body
        finally:
            self._inflight_bytes -= len(body)

    async def _read(self, request: Request, body: bytearray) -> None:
        """Reads the body.

        Raises:
          BadRequest: the body is too large, or too many bytes are under way.
        """
        max_bytes = self._limits.body_bytes
        too_large = BadRequest(
            f"the body may have {max_bytes} bytes at most", HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        )
        if int(request.headers.get("content-length", 0)) > max_bytes:
            raise too_large
        async for part in request.stream():
            body += part
            self._inflight_bytes += len(part)
            if len(body) > max_bytes:
                raise too_large
            if self._inflight_bytes > self._limits.inflight_bytes:
                raise BadRequest(
                    "too many bytes are under way. Try again later.",
                    HTTPStatus.SERVICE_UNAVAILABLE,
                )


_UNREAD_BODY_STATUSES = {
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.MISDIRECTED_REQUEST,
}
"""Answers that are given before the body was read.

The connection is closed, so that no more of the body is read.
"""


def _parse_hostname(url: str) -> str:
    with contextlib.suppress(ValueError):
        return urlsplit(url).hostname or ""
    return ""


def _to_error_response(error: BadRequest, closes: bool = False) -> Response:
    return _to_starlette_response(to_json_response({"error": str(error)}, error.status), closes)


def _to_starlette_response(answer: HttpResponse, closes: bool = False) -> Response:
    headers = _HEADERS | {"Content-Type": answer.type}
    if answer.type.startswith("text/html"):
        headers["Content-Security-Policy"] = _PAGE_POLICY
    if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = "1"
    if closes:
        headers["Connection"] = "close"
    return Response(answer.content, answer.status, headers)
